#include "loading.h"

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

#include "errors.h"
#include "key.h"
#include "memory.h"
#include "progress.h"

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
      : told_(std::move(progress)), options_(std::move(options)) {
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
        Signals::kWait);
    if (!next.has_value()) return nb::none();
    return nb::make_tuple(next->position, MakeMemory(std::move(next->bytes)));
  }

  nb::dict Stats() {
    const LoadStats stats = WithoutGil([&] {
      const std::lock_guard lock(mutex_);
      return stream_ == nullptr ? last_ : stream_->stats();
    });
    return StatsDict(stats);
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

LoadOptions LoadOptionsOf(nb::dict named) {
  LoadOptions options;
  for (const auto [key, value] : named) {
    if (value.is_none()) continue;
    const auto name = nb::cast<std::string>(key);
    if (name == "io") {
      options.io = IoModeOf(nb::cast<std::string>(value));
    } else if (name == "threads") {
      options.threads = nb::cast<int>(value);
    } else if (name == "verify") {
      options.verify = PyObject_IsTrue(value.ptr()) == 1;
    } else if (name == "memory_budget") {
      options.memory_budget = nb::cast<uint64_t>(value);
    } else if (name == "drop_cache") {
      options.drop_cache = PyObject_IsTrue(value.ptr()) == 1;
    } else if (name == "retries") {
      options.retries = nb::cast<int>(value);
    } else if (name == "largest_hole") {
      options.largest_hole = nb::cast<uint64_t>(value);
    } else if (name == "chunk_bytes") {
      options.chunk_bytes = nb::cast<uint64_t>(value);
    } else {
      throw nb::type_error(
          fmt::format("no option of loading is named {}", name).c_str());
    }
  }
  return options;
}

nb::dict StatsDict(const LoadStats& stats) {
  nb::dict dict;
  dict["tensor_bytes"] = stats.tensor_bytes;
  dict["read_bytes"] = stats.read_bytes;
  dict["requests"] = stats.requests;
  dict["retries"] = stats.retries;
  dict["threads"] = stats.threads;
  dict["seconds"] = stats.seconds;
  dict["plan_seconds"] = stats.plan_seconds;
  dict["allocate_seconds"] = stats.allocate_seconds;
  dict["read_seconds"] = stats.read_seconds;
  dict["decode_seconds"] = stats.decode_seconds;
  dict["verify_seconds"] = stats.verify_seconds;
  dict["io"] = std::string(Name(stats.io));
  dict["reason"] = stats.reason;
  dict["pages"] = stats.pages;
  dict["file_system"] = stats.file_system;
  dict["resident"] = stats.resident;
  return dict;
}

void BindLoading(nb::module_& module) {
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
