// Releases and takes the GIL around long calls, handles signals meanwhile, and
// copes with an interpreter that is being finalized.

#pragma once

#include <Python.h>
#include <nanobind/nanobind.h>

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <type_traits>

namespace haulway::python {

// Copies shorter than this keep the GIL: releasing it costs more than the copy.
inline constexpr size_t kLongCopy = size_t{64} << 10;

// Returns false once the interpreter has begun to finalize: threads may not
// enter Python any more.
bool PythonRuns();

// The same holds inside Python functions that this module calls: a thread that
// requests the GIL during finalization never runs again (gil.cc).

// Returns whether this is the thread on which Python runs signal handlers.
bool IsMainThread();

// A GilReleased releases the GIL during its lifetime. Requires: the GIL is
// held.
class GilReleased {
 public:
  GilReleased() : state_(PyEval_SaveThread()) {}
  GilReleased(const GilReleased&) = delete;
  GilReleased& operator=(const GilReleased&) = delete;
  ~GilReleased() { PyEval_RestoreThread(state_); }

 private:
  PyThreadState* const state_;
};

// A GilHeld holds the GIL during its lifetime, on any thread. It converts to
// false if the interpreter is being finalized; then no Python object may be
// touched.
class GilHeld {
 public:
  GilHeld();
  GilHeld(const GilHeld&) = delete;
  GilHeld& operator=(const GilHeld&) = delete;
  ~GilHeld();

  explicit operator bool() const { return held_; }

 private:
  bool held_ = false;
  PyGILState_STATE state_{};
};

// Returns a reference that any thread may drop, with or without the GIL.
// Requires: the GIL is held.
std::shared_ptr<PyObject> HeldAnywhere(nanobind::handle object);

// Runs `work` without the GIL and returns its result.
template <class Work>
auto WithoutGil(const Work& work) {
  const GilReleased released;
  return work();
}

// Runs `work` without the GIL. On the main thread, `work` runs on a thread of
// its own while this thread runs signal handlers. If a handler raises, sets
// `cancel`, waits for `work`, and returns false with the exception set;
// otherwise returns true. Rethrows what `work` throws.
bool RunMindingSignals(const std::function<void()>& work,
                       std::atomic<bool>* cancel);

}  // namespace haulway::python
