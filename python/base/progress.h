// Reports the engine's progress to a Python function.

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

// What a signal does during a call. kMind: the work runs on a thread of its own
// and ends early. kWait: the signal waits; for short calls, and for calls that
// run Python code, which handles signals itself.
enum class Signals { kMind, kWait };

// Transfers below kLong finish before a user could interrupt them.
inline Signals SignalsFor(uint64_t bytes) {
  constexpr uint64_t kLong = uint64_t{4} << 20;
  return bytes < kLong ? Signals::kWait : Signals::kMind;
}

// A Progress calls a Python function from any thread of the engine. If the
// function raises, the engine stops, and the thread that waits for the engine
// raises the exception again. Requires: created and destroyed with the GIL
// held.
class Progress {
 public:
  explicit Progress(nanobind::object function)
      : function_(std::move(function)) {}
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  ~Progress() { Py_XDECREF(raised_); }

  // Sets `progress` and `cancel` of LoadOptions, VerifyOptions or WriteOptions.
  // The options must not outlive this object.
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
      if (result == nullptr) Keep();
      Py_XDECREF(result);
    };
  }

  // Runs `work`, which uses the attached options, without the GIL. Returns its
  // value, or raises the exception of a signal handler, the progress function
  // or the library.
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
  // Keeps the exception that is set, and cancels the calls that have the
  // options.
  void Keep() {
    PyObject* type = nullptr;
    PyObject* value = nullptr;
    PyObject* trace = nullptr;
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    if (trace != nullptr) PyException_SetTraceback(value, trace);
    Py_XDECREF(type);
    Py_XDECREF(trace);
    failed_ = true;
    {
      const nanobind::ft_lock_guard lock(mutex_);
      std::swap(raised_, value);
    }
    Py_XDECREF(value);
    cancel_.store(true);
  }

  // Returns the exception that Keep() kept, once.
  PyObject* Take() {
    const nanobind::ft_lock_guard lock(mutex_);
    return std::exchange(raised_, nullptr);
  }

  // Returns the value, or raises the exception of the function or the library.
  template <class T>
  T Unwrap(Result<T> result) {
    // The exception is not kept: its traceback may refer to an object that
    // owns this one, which would be a cycle.
    if (PyObject* const raised = Take(); raised != nullptr) {
      PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(raised)), raised);
      Py_DECREF(raised);
      throw nanobind::python_error();
    }
    return python::Unwrap(std::move(result));
  }

  const nanobind::object function_;
  std::atomic<bool> cancel_{false};
  std::atomic<bool> failed_{false};
  nanobind::ft_mutex mutex_;  // Guards raised_ in a Python without a GIL.
  PyObject* raised_ = nullptr;
};

// Runs `work`, which may wait for a server, and handles signals meanwhile.
// Raises the exception of a signal handler or the library.
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

// Returns whether a read from the source waits for a server.
inline bool IsRemote(const ByteSource& source) {
  const SourceTraits traits = source.Look({});
  return traits.remote && !traits.local_file;
}

// Runs `work`, which reads from `source`, and handles signals meanwhile if that
// may wait for a server.
template <class Work>
auto ReadFrom(const ByteSource& source, const Work& work) {
  return IsRemote(source) ? Minding(work) : Unwrap(WithoutGil(work));
}

}  // namespace haulway::python
