// Bindings for reading the bytes of sources, and for URLs.

#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "base/path_text.h"
#include "base/progress.h"
#include "bind/bindings.h"
#include "bind/loading.h"
#include "bind/writing.h"
#include "haulway/file_set.h"
#include "haulway/layout.h"
#include "haulway/open.h"
#include "haulway/source.h"

namespace nb = nanobind;

namespace haulway::python {

namespace {

S3Options S3OptionsOf(nb::dict named) {
  S3Options options;
  SetFields(std::move(named), &options);
  return options;
}

// Makes the files of a set visible. `old`, a function or None, returns the
// paths of other files that go then, or first.
void CommitSet(FileSet& set, nb::object old, bool old_first) {
  std::optional<nb::python_error> raised;
  const auto listed = [&]() -> Result<std::vector<std::string>> {
    const GilHeld gil;
    const Status stopped(Code::kCancelled, "the files to replace are unknown");
    if (!gil) return stopped;
    try {
      std::vector<std::string> paths;
      for (nb::handle path : nb::list(old())) {
        paths.push_back(PathBytes(nb::borrow<nb::str>(path)));
      }
      return paths;
    } catch (nb::python_error& error) {
      raised.emplace(std::move(error));
      return stopped;
    }
  };
  const bool has_old = !old.is_none();
  const auto go = old_first ? FileSet::OldGo::kFirst : FileSet::OldGo::kLast;
  Minding([&]() -> Result<bool> {
    Status status = has_old ? set.Commit(listed, go) : set.Commit();
    if (!status.ok() && !raised.has_value()) return status;
    return true;
  });
  if (raised.has_value()) throw std::move(*raised);
}

Existing ExistingOf(const std::string& name) {
  if (name == "usual") return Existing::kUsual;
  if (name == "replace") return Existing::kReplace;
  if (name == "refuse") return Existing::kRefuse;
  Raise(Status(Code::kInvalidArgument,
               "existing: expected 'usual', 'replace' or 'refuse', found '" +
                   name + "'"));
}

// Memory that a Python object lends for writing.
class Lent {
 public:
  explicit Lent(nb::handle object) {
    if (PyObject_GetBuffer(object.ptr(), &view_, PyBUF_WRITABLE) != 0) {
      throw nb::python_error();
    }
  }
  Lent(Lent&& other) noexcept : view_(std::exchange(other.view_, {})) {}
  Lent& operator=(Lent&&) = delete;
  ~Lent() {
    if (view_.obj != nullptr) PyBuffer_Release(&view_);
  }
  std::span<std::byte> bytes() {
    return {static_cast<std::byte*>(view_.buf), static_cast<size_t>(view_.len)};
  }

 private:
  Py_buffer view_{};
};

// Takes pairs (offset, writable buffer) and fills the buffers.
void ReadMany(const ByteSource& source, nb::list pairs) {
  std::vector<Lent> lent;
  std::vector<ReadRequest> requests;
  lent.reserve(pairs.size());
  for (const nb::handle pair : pairs) {
    const nb::tuple parts = nb::cast<nb::tuple>(pair);
    lent.emplace_back(parts[1]);
    requests.push_back({nb::cast<uint64_t>(parts[0]), lent.back().bytes()});
  }
  const auto read = [&]() -> Result<bool> {
    HAULWAY_TRY(source.ReadMany(requests));
    return true;
  };
  if (IsRemote(source)) {
    Minding(read);
  } else {
    Unwrap(WithoutGil(read));
  }
}

nb::dict StatsOf(const ByteSource& source) {
  const auto stats = source.remote_stats().value_or(RemoteStats());
  nb::dict dict;
  dict["requests"] = stats.requests;
  dict["retries"] = stats.retries;
  dict["received_bytes"] = stats.received_bytes;
  dict["version"] = stats.version;
  return dict;
}

// `check` is None or is called with the path of the downloaded file.
nb::dict DownloadTo(const ByteSource& source, const std::string& path,
                    int threads, nb::object progress, nb::object check) {
  DownloadOptions options;
  options.threads = threads;
  Progress told(std::move(progress));
  told.Attach(&options);
  std::optional<nb::python_error> raised;
  if (!check.is_none()) {
    options.check = [&](const std::string& part) {
      const GilHeld gil;
      if (!gil) return Status(Code::kCancelled, "Python is ending");
      try {
        check(nb::cast(part));
      } catch (nb::python_error& error) {
        raised.emplace(std::move(error));
        return Status(Code::kCorrupt, "the check of the file failed");
      }
      return Status();
    };
  }
  // The exception of `check` takes precedence over the failure it caused.
  const auto download = [&]() -> Result<DownloadStats> {
    auto stats = Download(source, path, options);
    if (!stats.ok() && raised.has_value()) return DownloadStats();
    return stats;
  };
  const DownloadStats stats = told.Run(download);
  if (raised.has_value()) throw std::move(*raised);
  return FieldsDict(stats);
}

nb::dict UploadTo(const ByteSource& source, nb::object target, nb::dict writing,
                  nb::object progress) {
  const Signals signals = SignalsOf(target);
  Engine engine = EngineOf(std::move(writing));
  auto sink = OpenSink(std::move(target), engine.file);
  WriteOptions& options = engine.write;
  Progress told(std::move(progress));
  told.Attach(&options);
  const auto upload = [&](ByteSink& to) { return Upload(source, to, options); };
  return FieldsDict(RunWith(std::move(sink), told, signals, upload));
}

}  // namespace

void BindRemote(nb::module_& module) {
  nb::class_<Target>(module, "Target")
      .def(
          "__init__",
          [](Target* self, std::string uri, nb::dict remote, nb::dict s3,
             const std::string& existing) {
            new (self) Target{std::move(uri), S3OptionsOf(std::move(s3)),
                              RemoteOptionsOf(std::move(remote)),
                              ExistingOf(existing)};
          },
          nb::arg("uri"), nb::arg("remote") = nb::dict(),
          nb::arg("s3") = nb::dict(), nb::arg("existing") = "usual");
  nb::class_<SetFile>(module, "SetFile");
  nb::class_<FileSet>(module, "FileSet")
      .def("__init__",
           [](FileSet* self, const std::string& durability) {
             new (self) FileSet(
                 FromWord<Durability>(durability).value_or(Durability::kFull));
           })
      .def("add_written",
           [](FileSet& set, const nb::str& path, const nb::str& temporary) {
             Check(set.AddWritten(PathBytes(path), PathBytes(temporary)));
           })
      // Returns the names that the files have until they are committed.
      .def("prepare",
           [](FileSet& set) {
             Minding([&]() -> Result<bool> {
               HAULWAY_TRY(set.Prepare());
               return true;
             });
             nb::list names;
             for (const std::string& name : set.TemporaryNames()) {
               names.append(PathText(name));
             }
             return names;
           })
      .def("commit", &CommitSet, nb::arg("old").none(),
           nb::arg("old_first") = false);
  // Returns `target`, a path or a Target, as a target in a set.
  module.def("file_of_set",
             [](std::shared_ptr<FileSet> set, nb::object target) {
               return SetFile{std::move(set), std::move(target)};
             });
  module.attr("UNFINISHED_INDEX") =
      nb::bytes(kUnfinishedIndex.data(), kUnfinishedIndex.size());
  // How the name of a file begins that is there while a set without an index
  // becomes visible.
  module.attr("OPEN_SET") = "." + std::string(kOpenSet) + ".";
  module.def("read_many", &ReadMany);
  module.def("source_stats", &StatsOf);
  module.def("open_s3_source",
             [](const std::string& uri, nb::dict s3, nb::dict remote) {
               const S3Options options = S3OptionsOf(std::move(s3));
               const RemoteOptions reached = RemoteOptionsOf(std::move(remote));
               return std::const_pointer_cast<ByteSource>(Minding(
                   [&] { return OpenS3Source(uri, options, reached); }));
             });
  module.def(
      "presign_s3", [](const std::string& uri, uint64_t seconds, nb::dict s3) {
        const S3Options options = S3OptionsOf(std::move(s3));
        // The unique_ptr works around a false warning of g++ 12 about strings.
        return *Minding([&]() -> Result<std::unique_ptr<std::string>> {
          HAULWAY_ASSIGN(std::string url, PresignS3(uri, seconds, options));
          return std::make_unique<std::string>(std::move(url));
        });
      });
  module.def("download", &DownloadTo, nb::arg("source"), nb::arg("path"),
             nb::arg("threads"), nb::arg("progress").none(),
             nb::arg("check").none());
  module.def("upload", &UploadTo, nb::arg("source"), nb::arg("target"),
             nb::arg("writing"), nb::arg("progress").none());
}

}  // namespace haulway::python
