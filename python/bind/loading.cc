#include "bind/loading.h"

#include <fmt/format.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "base/fields.h"
#include "base/memory.h"
#include "base/progress.h"
#include "base/version_memory.h"
#include "bind/key.h"

namespace nb = nanobind;

namespace haulway::python {

namespace {

// A StorageStream, and what it was told to tell. Python ends the stream when
// it lets go of this, with or without having taken all.
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
  // Its threads may be waiting for the GIL, to tell of progress.
  ~Stream() { Close(); }

  // (position, Memory), or None after the last.
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
  std::mutex mutex_;  // Never waited for with the GIL.
  std::unique_ptr<StorageStream> stream_;
  LoadStats last_;
};

}  // namespace

IoMode IoModeOf(std::string_view io) {
  if (io == "view") return IoMode::kMmap;
  if (io == "read") return IoMode::kPread;
  if (const auto mode = IoModeFromName(io)) return *mode;
  Raise(Status(
      Code::kInvalidArgument,
      fmt::format("io is {}: expected auto, mmap, pread, direct, uring or "
                  "snapshot",
                  io)));
}

OpenOptions OpenOptionsOf(nb::dict named) {
  OpenOptions options;
  nb::object key = nb::none();
  nb::object passphrase = nb::none();
  for (const auto [option, value] : named) {
    if (value.is_none()) continue;
    const auto name = nb::cast<std::string>(option);
    const auto flag = [&] { return PyObject_IsTrue(value.ptr()) == 1; };
    if (name == "strict") {
      options.strictness = flag() ? Strictness::kStrict : Strictness::kLenient;
    } else if (name == "allowed_globals") {
      options.allowed_globals = nb::cast<std::vector<std::string>>(value);
    } else if (name == "big_endian_default") {
      options.big_endian_default = flag();
    } else if (name == "check_frames") {
      options.check_frames = flag();
    } else if (name == "debug_offsets") {
      options.debug_offsets = flag();
    } else if (name == "keep_meta") {
      options.keep_meta = flag();
    } else if (name == "key") {
      key = nb::borrow(value);
    } else if (name == "passphrase") {
      passphrase = nb::borrow(value);
    } else {
      throw nb::type_error(
          fmt::format("no option of opening is named {}", name).c_str());
    }
  }
  options.key = KeyOf(key, passphrase);
  return options;
}

RemoteOptions RemoteOptionsOf(nb::dict named) {
  RemoteOptions options = RemoteOptionsFromEnvironment();
  for (const auto [key, value] : named) {
    if (value.is_none()) continue;
    const auto name = nb::cast<std::string>(key);
    const auto text = [&] { return nb::cast<std::string>(value); };
    const auto seconds = [&] {
      return std::chrono::milliseconds(
          static_cast<int64_t>(nb::cast<double>(value) * 1000));
    };
    if (name == "headers") {
      for (const auto [header, content] : nb::cast<nb::dict>(value)) {
        options.headers.push_back(
            {nb::cast<std::string>(header), nb::cast<std::string>(content)});
      }
    } else if (name == "bearer_token") {
      options.bearer_token = text();
    } else if (name == "netrc") {
      options.netrc = text();
    } else if (name == "ca_file") {
      // Who is trusted, and not who else the environment says.
      options.ca_file = text();
      options.ca_dir.clear();
    } else if (name == "ca_dir") {
      options.ca_dir = text();
      options.ca_file.clear();
    } else if (name == "client_certificate") {
      options.client_certificate = text();
    } else if (name == "client_key") {
      options.client_key = text();
    } else if (name == "insecure") {
      options.insecure = PyObject_IsTrue(value.ptr()) == 1;
    } else if (name == "proxy") {
      options.proxy = text();
    } else if (name == "connect_timeout") {
      options.connect_timeout = seconds();
    } else if (name == "stall_timeout") {
      options.stall_timeout = seconds();
    } else if (name == "timeout") {
      options.deadline = seconds();
    } else if (name == "connections") {
      options.connections = nb::cast<int>(value);
    } else if (name == "cache_dir") {
      options.cache_folder = text();
    } else if (name == "cache_size") {
      options.most_cached_bytes = nb::cast<uint64_t>(value);
    } else if (name == "retries") {
      options.retries = nb::cast<int>(value);
    } else {
      throw nb::type_error(
          fmt::format("no option of URLs is named {}", name).c_str());
    }
  }
  return options;
}

LoadOptions LoadOptionsOf(nb::dict named) {
  LoadOptions options;
  for (const auto [key, value] : named) {
    if (value.is_none()) continue;
    const auto name = nb::cast<std::string>(key);
    if (name == "memory") {
      options.allocate =
          [publisher = nb::cast<VersionMemory&>(value).publisher](
              uint64_t bytes) { return publisher->Reserve(bytes); };
    } else if (!SetField(name, value, &options)) {
      throw nb::type_error(
          fmt::format("no option of loading is named {}", name).c_str());
    }
  }
  return options;
}

void BindLoading(nb::module_& module) {
  // The statistics of a load that can be added up.
  module.attr("LOAD_SUMS") = SummedFields<LoadStats>();
  nb::class_<Stream>(module, "StorageStream")
      .def("next", &Stream::Next)
      .def("stats", &Stream::Stats)
      .def("close", &Stream::Close);
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
