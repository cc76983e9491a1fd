// What the bindings that write files share.

#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "calling.h"
#include "errors.h"
#include "gil.h"
#include "haulway/layout.h"
#include "haulway/open.h"
#include "haulway/sink.h"
#include "progress.h"

namespace haulway::python {

// A Borrowed is bytes that a Python object lends while this lives: of an
// object with the buffer protocol, or, of a tuple (owner, address, length),
// at that address.
class Borrowed {
 public:
  explicit Borrowed(nanobind::handle object) {
    if (PyTuple_CheckExact(object.ptr())) {
      const nanobind::tuple tuple = nanobind::borrow<nanobind::tuple>(object);
      owner_ = tuple[0];
      bytes_ = {reinterpret_cast<const std::byte*>(
                    nanobind::cast<uintptr_t>(tuple[1])),
                nanobind::cast<size_t>(tuple[2])};
      return;
    }
    if (PyObject_GetBuffer(object.ptr(), &view_, PyBUF_SIMPLE) != 0) {
      throw nanobind::python_error();
    }
    bytes_ = {static_cast<const std::byte*>(view_.buf),
              static_cast<size_t>(view_.len)};
  }
  Borrowed(Borrowed&& other) noexcept
      : owner_(std::move(other.owner_)),
        view_(std::exchange(other.view_, Py_buffer{})),
        bytes_(other.bytes_) {}
  Borrowed& operator=(Borrowed&&) = delete;
  ~Borrowed() {
    if (view_.obj != nullptr) PyBuffer_Release(&view_);
  }

  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  nanobind::object owner_;
  Py_buffer view_{};
  std::span<const std::byte> bytes_;
};

inline Durability DurabilityOf(std::string_view name) {
  if (name == "full") return Durability::kFull;
  if (name == "none") return Durability::kNone;
  Raise(Status(Code::kInvalidArgument,
               "durability: expected 'full' or 'none', found '" +
                   std::string(name) + "'"));
}

// How signals are minded while a target is written to.
inline Signals SignalsOf(nanobind::handle target) {
  return PyUnicode_Check(target.ptr()) ? Signals::kMind : Signals::kWait;
}

// A path, or a function that takes bytes in order.
inline std::unique_ptr<ByteSink> OpenSink(nanobind::object target,
                                          std::string_view durability) {
  if (PyUnicode_Check(target.ptr())) {
    return Unwrap(haulway::OpenSink(nanobind::cast<std::string>(target),
                                    {.durability = DurabilityOf(durability)}));
  }
  return MakeFunctionSink(
      [target = std::move(target)](
          std::span<const std::byte> bytes) mutable -> Status {
        const GilHeld gil;
        if (!gil) return Status(Code::kCancelled, "Python is ending");
        while (!bytes.empty()) {
          PyObject* view = PyMemoryView_FromMemory(
              const_cast<char*>(reinterpret_cast<const char*>(bytes.data())),
              static_cast<Py_ssize_t>(bytes.size()), PyBUF_READ);
          if (view == nullptr) return Status(Code::kLimit, "no memory");
          const nanobind::object held = nanobind::steal(view);
          const nanobind::object result = nanobind::steal(CallingPython(
              [&] { return PyObject_CallOneArg(target.ptr(), view); }));
          // The exception itself is what Raise() raises.
          if (!result.is_valid()) {
            return Status(Code::kIoError, "the file object raised");
          }
          // Nobody may look at the bytes later.
          const nanobind::object released =
              nanobind::steal(PyObject_CallMethod(view, "release", nullptr));
          if (!released.is_valid()) PyErr_Clear();
          // Raw files may take less than they are given.
          const size_t taken = PyLong_Check(result.ptr())
                                   ? PyLong_AsSize_t(result.ptr())
                                   : bytes.size();
          if (taken == 0 || taken > bytes.size()) {
            PyErr_Clear();
            return Status(Code::kIoError, "the file object took no bytes");
          }
          bytes = bytes.subspan(taken);
        }
        return Status();
      },
      "file object");
}

// `memory_budget` is a number of bytes, or None for what is usual.
inline WriteOptions WriteOptionsOf(int threads,
                                   nanobind::handle memory_budget) {
  WriteOptions options;
  options.threads = threads;
  if (!memory_budget.is_none()) {
    options.memory_budget = nanobind::cast<uint64_t>(memory_budget);
  }
  return options;
}

inline nanobind::dict StatsDict(const WriteStats& stats) {
  nanobind::dict dict;
  dict["bytes"] = stats.bytes;
  dict["tensor_bytes"] = stats.tensor_bytes;
  dict["written_bytes"] = stats.written_bytes;
  dict["requests"] = stats.requests;
  dict["threads"] = stats.threads;
  dict["seconds"] = stats.seconds;
  dict["allocate_seconds"] = stats.allocate_seconds;
  dict["digest_seconds"] = stats.digest_seconds;
  dict["encode_seconds"] = stats.encode_seconds;
  dict["write_seconds"] = stats.write_seconds;
  dict["commit_seconds"] = stats.commit_seconds;
  dict["direct"] = stats.direct;
  return dict;
}

}  // namespace haulway::python
