#include "bind/loading.h"

#include <fmt/format.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "base/fields.h"
#include "base/memory.h"
#include "base/path_text.h"
#include "base/progress.h"
#include "base/version_memory.h"

namespace nb = nanobind;

namespace haulway::python {

namespace {

// A StorageStream with its progress. Destroying it ends the stream, whether or
// not all storages were taken.
class Stream {
 public:
  Stream(std::shared_ptr<const Checkpoint> checkpoint,
         std::vector<uint32_t> rows, LoadOptions options, LoadOrder order,
         nb::object progress)
      : waits_for_server_(IsRemote(checkpoint->source())),
        told_(std::move(progress)),
        options_(std::move(options)) {
    told_.Attach(&options_);
    stream_ = told_.Run(
        [&] {
          return StorageStream::Open(std::move(checkpoint), std::move(rows),
                                     options_, order);
        },
        Signals::kWait);
  }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  // Close() releases the GIL, which the stream's threads may need to report
  // progress.
  ~Stream() { Close(); }

  // Returns (position, Memory), or None after the last.
  nb::object Next() {
    auto next = told_.Run(
        [&]() -> Result<std::optional<Loaded>> {
          const std::lock_guard lock(mutex_);
          if (stream_ == nullptr) return std::optional<Loaded>();
          return stream_->Next();
        },
        waits_for_server_ ? Signals::kMind : Signals::kWait);
    if (!next.has_value()) return nb::none();
    return nb::make_tuple(next->position, MakeMemory(std::move(next->bytes)));
  }

  nb::dict Stats() {
    const LoadStats stats = WithoutGil([&] {
      const std::lock_guard lock(mutex_);
      return stream_ == nullptr ? last_ : stream_->stats();
    });
    return FieldsDict(stats);
  }

  void Close() {
    WithoutGil([&] {
      const std::lock_guard lock(mutex_);
      if (stream_ == nullptr) return;
      last_ = stream_->stats();
      stream_.reset();
    });
  }

 private:
  using Loaded = StorageStream::Loaded;

  const bool waits_for_server_;
  Progress told_;
  LoadOptions options_;
  std::mutex mutex_;  // Lock only without the GIL.
  std::unique_ptr<StorageStream> stream_;
  LoadStats last_;
};

// The memory pool of all loads in this process. Never destroyed: its thread may
// outlive main().
const MemoryPool& ThePool() {
  static const MemoryPool* const pool = new MemoryPool();
  return *pool;
}

RemoteOptions EnvironmentOptions() {
#ifdef Py_GIL_DISABLED
  // The same of os.environ, which may be read while another thread changes it;
  // the system's own list may not.
  const nb::object get = nb::module_::import_("os").attr("environ").attr("get");
  const auto variable = [&](const char* name) {
    return PathBytes(nb::cast<nb::str>(get(name, "")));
  };
  RemoteOptions options;
  options.ca_file = variable("SSL_CERT_FILE");
  options.ca_dir = variable("SSL_CERT_DIR");
  if (options.ca_file.empty() && options.ca_dir.empty()) {
    options.ca_file = variable("CURL_CA_BUNDLE");
  }
  options.proxy_from_environment = true;
  return options;
#else
  return RemoteOptionsFromEnvironment();
#endif
}

}  // namespace

OpenOptions OpenOptionsOf(nb::dict named) {
  OpenOptions options;
  // A call's dtype, which is no option of opening.
  constexpr const char* kDType = "dequantized_dtype";
  if (named.contains(kDType)) {
    if (!named[kDType].is_none()) {
      options.dequantized_dtype =
          DTypeFromName(nb::cast<std::string>(named[kDType]));
    }
    nb::del(named[kDType]);
  }
  // How adapters and rules are reached, which is an option of every call.
  constexpr const char* kReaching = "reaching";
  if (named.contains(kReaching)) {
    options.open_input = [remote = RemoteOptionsOf(nb::cast<nb::dict>(
                              named[kReaching]))](std::string_view uri) {
      return OpenSource(uri, {.remote = remote});
    };
    nb::del(named[kReaching]);
  }
  SetFields(std::move(named), &options);
  return options;
}

RemoteOptions RemoteOptionsOf(nb::dict named) {
  RemoteOptions options = EnvironmentOptions();
  const std::string ca_file = std::exchange(options.ca_file, {});
  const std::string ca_dir = std::exchange(options.ca_dir, {});
  SetFields(std::move(named), &options);
  // Explicit certificates replace those of the environment.
  if (options.ca_file.empty() && options.ca_dir.empty()) {
    options.ca_file = ca_file;
    options.ca_dir = ca_dir;
  }
  return options;
}

SinkOpener OpenerOf(nb::dict remote, bool overwrite) {
  return [remote = RemoteOptionsOf(std::move(remote)), overwrite](
             const std::string& uri, FileSinkOptions file) {
    if (overwrite) file.existing = Existing::kReplace;
    return haulway::OpenSink(uri, {file, remote});
  };
}

LoadOptions LoadOptionsOf(nb::dict named) {
  LoadOptions options;
  options.pool = &ThePool();
  nb::dict fields;
  for (const auto [key, value] : named) {
    if (value.is_none()) continue;
    if (nb::cast<std::string>(key) != "memory") {
      fields[key] = value;
      continue;
    }
    options.allocate = [publisher = nb::cast<VersionMemory&>(value).publisher](
                           uint64_t bytes) {
      return publisher->Reserve(bytes);
    };
  }
  SetFields(std::move(fields), &options);
  return options;
}

void BindLoading(nb::module_& module) {
  // Names of the fields of load statistics that can be summed.
  module.attr("LOAD_SUMS") = SummedFields<LoadStats>();
  nb::class_<Stream>(module, "StorageStream")
      .def("next", &Stream::Next)
      .def("stats", &Stream::Stats)
      .def("close", &Stream::Close);
  // Called before a fork, so that the child inherits no pooled memory and no
  // thread.
  module.def(
      "clear_memory_pool", [] { ThePool().Clear(); },
      nb::call_guard<nb::gil_scoped_release>());
  module.def("kept_bytes", [] { return ThePool().kept_bytes(); });
  module.def(
      "stream_storages",
      [](std::shared_ptr<Checkpoint> checkpoint, std::vector<uint32_t> rows,
         nb::dict loading, std::string order, nb::object progress) {
        if (order != "plan" && order != "completion") {
          Raise(Status(
              Code::kInvalidArgument,
              fmt::format("order is {}: expected plan or completion", order)));
        }
        return std::make_unique<Stream>(
            std::move(checkpoint), std::move(rows), LoadOptionsOf(loading),
            order == "plan" ? LoadOrder::kPlan : LoadOrder::kCompletion,
            std::move(progress));
      },
      nb::arg("checkpoint"), nb::arg("rows"), nb::arg("loading"),
      nb::arg("order"), nb::arg("progress").none());
}

}  // namespace haulway::python
