// Types and functions that the bindings that write files share.

#pragma once

#include <nanobind/nanobind.h>
#include <sys/stat.h>

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
#include "haulway/file_set.h"
#include "haulway/index.h"
#include "haulway/layout.h"
#include "haulway/open.h"
#include "haulway/runs.h"
#include "haulway/sink.h"

namespace haulway::python {

// A Borrowed holds the bytes that a Python object lends during its lifetime.
// The object has the buffer protocol or is a tuple (owner, address, length).
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

// A Target is a URL to write to, and the options of the connection.
struct Target {
  std::string uri;
  S3Options s3;  // For s3:// only.
  RemoteOptions remote;
  Existing existing = Existing::kUsual;

  Result<std::unique_ptr<ByteSink>> Open(FileSinkOptions file) const {
    file.existing = existing;
    if (uri.starts_with("s3://")) return OpenS3Sink(uri, s3, file, remote);
    return haulway::OpenSink(uri, {file, remote});
  }
};

// A SetFile is a path or a Target that becomes visible with its set.
struct SetFile {
  std::shared_ptr<FileSet> set;
  nanobind::object target;
};

// A StepFile is a file of a step of a training run.
struct StepFile {
  nanobind::object step;  // Its NewStep.
  std::string name;

  // Returns a function that opens it, with or without the GIL.
  auto Opening(const FileSinkOptions& file) const {
    return [&own = nanobind::cast<NewStep&>(step), &name = name, &file] {
      return own.OpenFile(name, file);
    };
  }
};

// Returns the path or URL that is written to; nullopt for a function.
inline std::optional<std::string> TargetName(nanobind::handle target) {
  if (nanobind::isinstance<SetFile>(target)) {
    return TargetName(nanobind::cast<const SetFile&>(target).target);
  }
  if (PyUnicode_Check(target.ptr())) {
    return PathBytes(nanobind::borrow<nanobind::str>(target));
  }
  if (nanobind::isinstance<Target>(target)) {
    return nanobind::cast<const Target&>(target).uri;
  }
  if (nanobind::isinstance<StepFile>(target)) {
    const auto& one = nanobind::cast<const StepFile&>(target);
    return nanobind::cast<const NewStep&>(one.step).folder() + '/' + one.name;
  }
  return std::nullopt;
}

// Returns how signals are handled while a target is written to.
inline Signals SignalsOf(nanobind::handle target) {
  return TargetName(target).has_value() ? Signals::kMind : Signals::kWait;
}

// The same for a known size: a small local file without fsync does not wait.
inline Signals SignalsOf(nanobind::handle target, uint64_t bytes,
                         Durability durability) {
  const auto name = TargetName(target);
  // A step of a run may be in a store.
  if (name.has_value() && name->find("://") == name->npos &&
      durability == Durability::kNone &&
      !nanobind::isinstance<StepFile>(target)) {
    return SignalsFor(bytes);
  }
  return SignalsOf(target);
}

inline bool IsPipe(const std::string& path) {
  struct stat facts;
  return ::stat(path.c_str(), &facts) == 0 && S_ISFIFO(facts.st_mode);
}

// Opens a path, a Target, or a function that takes the bytes in order.
inline std::unique_ptr<ByteSink> OpenSink(nanobind::object target,
                                          const FileSinkOptions& file) {
  if (nanobind::isinstance<SetFile>(target)) {
    const auto& one = nanobind::cast<const SetFile&>(target);
    if (!PyUnicode_Check(one.target.ptr())) {
      return one.set->AddSink(OpenSink(one.target, file));
    }
    const std::string name = *TargetName(one.target);
    return Unwrap(WithoutGil([&] { return one.set->AddFile(name, file); }));
  }
  if (PyUnicode_Check(target.ptr())) {
    const std::string name = *TargetName(target);
    const auto open = [&] { return haulway::OpenSink(name, {.file = file}); };
    // Opening a pipe waits for its reader.
    return IsPipe(name) ? Minding(open) : Unwrap(WithoutGil(open));
  }
  if (nanobind::isinstance<Target>(target)) {
    const auto& url = nanobind::cast<const Target&>(target);
    return Minding([&] { return url.Open(file); });
  }
  if (nanobind::isinstance<StepFile>(target)) {
    return Minding(nanobind::cast<const StepFile&>(target).Opening(file));
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
          // The Python exception is set, and Raise() raises it.
          if (!result.is_valid()) {
            return Status(Code::kIoError, "the file object raised");
          }
          // The function must not use the bytes after it returns.
          const nanobind::object released =
              nanobind::steal(PyObject_CallMethod(view, "release", nullptr));
          if (!released.is_valid()) PyErr_Clear();
          // Raw files may write fewer bytes than they are given.
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

// Runs `write` with a sink. If it fails, the sink is destroyed within the work,
// since aborting an upload may wait for a server.
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

// The write options that every call has in addition to its own.
struct Engine {
  WriteOptions write;
  FileSinkOptions file;
};

// Converts the options of a call that writes: those of the engine and of the
// `more` structs; see SetFields().
template <class... Structs>
Engine EngineOf(nanobind::dict named, Structs*... more) {
  Engine engine;
  SetFields(std::move(named), &engine.write, &engine.file, more...);
  return engine;
}

// Writes a laid-out file to `target` and reports to `progress`. Returns the
// statistics.
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

// Converts a metadata value: a tuple of the value, its kind and its type name.
Fact FactOf(nanobind::handle key, nanobind::handle value);

}  // namespace haulway::python
