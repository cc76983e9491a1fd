// What the bindings that write files share.

#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "base/errors.h"
#include "base/fields.h"
#include "base/gil.h"
#include "base/path_text.h"
#include "base/progress.h"
#include "haulway/index.h"
#include "haulway/layout.h"
#include "haulway/open.h"
#include "haulway/sink.h"

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

// A Target is a URL to write to, with how it is reached.
struct Target {
  std::string uri;
  S3Options s3;  // Applies to s3:// only.
  RemoteOptions remote;
  Existing existing = Existing::kUsual;

  Result<std::unique_ptr<ByteSink>> Open(FileSinkOptions file) const {
    file.existing = existing;
    if (uri.starts_with("s3://")) return OpenS3Sink(uri, s3, file, remote);
    return haulway::OpenSink(uri, {file, remote});
  }
};

// The path or URL that is written to; none for a function.
inline std::optional<std::string> TargetName(nanobind::handle target) {
  if (PyUnicode_Check(target.ptr())) {
    return PathBytes(nanobind::borrow<nanobind::str>(target));
  }
  if (nanobind::isinstance<Target>(target)) {
    return nanobind::cast<const Target&>(target).uri;
  }
  return std::nullopt;
}

// How signals are minded while a target is written to.
inline Signals SignalsOf(nanobind::handle target) {
  return TargetName(target).has_value() ? Signals::kMind : Signals::kWait;
}

// The same, if `bytes` are written: only servers and disks are waited for.
inline Signals SignalsOf(nanobind::handle target, uint64_t bytes,
                         Durability durability) {
  const auto name = TargetName(target);
  if (name.has_value() && name->find("://") == name->npos &&
      durability == Durability::kNone) {
    return SignalsFor(bytes);
  }
  return SignalsOf(target);
}

// A path, a Target, or a function that takes bytes in order.
inline std::unique_ptr<ByteSink> OpenSink(nanobind::object target,
                                          const FileSinkOptions& file) {
  if (PyUnicode_Check(target.ptr())) {
    return Unwrap(haulway::OpenSink(*TargetName(target), {.file = file}));
  }
  if (nanobind::isinstance<Target>(target)) {
    const auto& url = nanobind::cast<const Target&>(target);
    return Minding([&] { return url.Open(file); });
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
          const nanobind::object result =
              nanobind::steal(PyObject_CallOneArg(target.ptr(), view));
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

// Does `write` with a sink. If it fails, the sink goes inside of it, since what
// ends there may wait for a server.
template <class Work>
auto RunWith(std::unique_ptr<ByteSink> sink, Progress& told, Signals signals,
             const Work& write) {
  const auto work = [&] {
    auto done = write(*sink);
    if (!done.ok() && signals == Signals::kMind) sink.reset();
    return done;
  };
  return told.Run(work, signals);
}

// How a file is written: the options that every call has beside its own.
struct Engine {
  WriteOptions write;
  FileSinkOptions file;
};

// The options of a call that writes, by the names of the tables of the engine
// and of `more`; see SetFields().
template <class... Structs>
Engine EngineOf(nanobind::dict named, Structs*... more) {
  Engine engine;
  SetFields(std::move(named), &engine.write, &engine.file, more...);
  return engine;
}

// Writes a laid-out file to what `target` names, telling `progress` on the way.
// Returns its statistics.
inline nanobind::dict WriteFile(nanobind::object target, const Layout& layout,
                                const Engine& engine,
                                nanobind::object progress) {
  const Signals signals =
      SignalsOf(target, layout.size(), engine.file.durability);
  auto sink = OpenSink(std::move(target), engine.file);
  WriteOptions options = engine.write;
  Progress told(std::move(progress));
  told.Attach(&options);
  const auto write = [&](ByteSink& to) { return Write(layout, to, options); };
  return FieldsDict(RunWith(std::move(sink), told, signals, write));
}

// A value of metadata: a tuple of it, its kind and the name of its type.
Fact FactOf(nanobind::handle key, nanobind::handle value);

}  // namespace haulway::python
