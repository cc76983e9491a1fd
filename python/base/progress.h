// Progress of the engine, told to a Python function.

#pragma once

#include <nanobind/nanobind.h>

#include <atomic>
#include <cstdint>
#include <optional>
#include <utility>

#include "base/errors.h"
#include "base/gil.h"
#include "haulway/options.h"
#include "haulway/source.h"

namespace haulway::python {

// Whether signals end what is done early, on a thread of its own, or wait: for
// what is soon done, and what runs Python all along, which minds them itself.
enum class Signals { kMind, kWait };

// Loading or writing little is done before anybody has asked for its end.
inline Signals SignalsFor(uint64_t bytes) {
  constexpr uint64_t kLong = uint64_t{4} << 20;
  return bytes < kLong ? Signals::kWait : Signals::kMind;
}

// A Progress calls a Python function from whatever thread the engine calls it
// on. What the function raises stops the engine and is raised again by the
// thread that waits for it. Requires: made and dropped with the GIL held.
class Progress {
 public:
  explicit Progress(nanobind::object function)
      : function_(std::move(function)) {}
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  ~Progress() { Py_XDECREF(raised_); }

  // Sets `progress` and `cancel` of LoadOptions, VerifyOptions or
  // WriteOptions, which must not outlive this.
  template <class Options>
  void Attach(Options* options) {
    if constexpr (requires { options->cancel; }) options->cancel = &cancel_;
    if (function_.is_none()) return;
    options->progress = [this](uint64_t done, uint64_t total) {
      const GilHeld gil;
      if (!gil) cancel_.store(true);
      if (!gil || failed_) return;
      PyObject* result = PyObject_CallFunction(
          function_.ptr(), "KK", static_cast<unsigned long long>(done),
          static_cast<unsigned long long>(total));
      if (result == nullptr) {
        PyObject* type = nullptr;
        PyObject* trace = nullptr;
        PyErr_Fetch(&type, &raised_, &trace);
        PyErr_NormalizeException(&type, &raised_, &trace);
        if (trace != nullptr) PyException_SetTraceback(raised_, trace);
        Py_XDECREF(type);
        Py_XDECREF(trace);
        failed_ = true;
        cancel_.store(true);
      }
      Py_XDECREF(result);
    };
  }

  // Does what has the options, without the GIL. Returns the value, or raises
  // what the handler of a signal did, or the function, or the library.
  template <class Work>
  auto Run(const Work& work, Signals signals = Signals::kMind) {
    if (signals == Signals::kWait) return Unwrap(WithoutGil(work));
    std::optional<decltype(work())> result;
    if (!RunMindingSignals([&] { result.emplace(work()); }, &cancel_)) {
      throw nanobind::python_error();
    }
    return Unwrap(std::move(*result));
  }

 private:
  // The value, or the exception of the function, or that of the library.
  template <class T>
  T Unwrap(Result<T> result) {
    if (raised_ != nullptr) {
      // Not kept: its traceback may lead back to whoever holds this.
      PyObject* const raised = std::exchange(raised_, nullptr);
      PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(raised)), raised);
      Py_DECREF(raised);
      throw nanobind::python_error();
    }
    return python::Unwrap(std::move(result));
  }

  const nanobind::object function_;
  std::atomic<bool> cancel_{false};
  bool failed_ = false;  // This and the next: with the GIL.
  PyObject* raised_ = nullptr;
};

// Does what may wait for a server, minding signals; raises what the handler of
// one did, or the library.
template <class Work>
auto Minding(const Work& work) {
  std::atomic<bool> cancel{false};
  std::optional<decltype(work())> result;
  const auto run = [&] {
    const CancelScope scope(&cancel);
    result.emplace(work());
  };
  if (!RunMindingSignals(run, &cancel)) throw nanobind::python_error();
  return Unwrap(std::move(*result));
}

// Whether reading it waits for a server.
inline bool IsRemote(const ByteSource& source) {
  const SourceTraits traits = source.Look({});
  return traits.remote && !traits.local_file;
}

}  // namespace haulway::python
