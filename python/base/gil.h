// Letting go of the GIL, and taking it, where calls are long, signals come and
// the interpreter may end meanwhile.

#pragma once

#include <Python.h>

#include <atomic>
#include <functional>
#include <type_traits>

namespace haulway::python {

// Whether threads may still enter Python: not once it began to end.
bool PythonRuns();

// Below the Python functions that this module calls, too, a thread that wants
// the GIL once Python is ending never runs again (gil.cc).

// A GilReleased lets go of the GIL as long as it lives. Requires: the GIL is
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

// A GilHeld holds the GIL as long as it lives, on whatever thread; it is false
// where Python is ending, and no object may be touched then.
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

// Runs `work` without the GIL and returns what it returns.
template <class Work>
auto WithoutGil(const Work& work) {
  const GilReleased released;
  return work();
}

// Runs `work` without the GIL, and on the main thread lets signals have their
// say: `work` runs on a thread of its own, and this one looks for signals. If
// the handler of one raises, sets `cancel`, waits for `work`, and returns false
// with the exception set; true otherwise. Throws what `work` throws.
bool RunMindingSignals(const std::function<void()>& work,
                       std::atomic<bool>* cancel);

}  // namespace haulway::python
