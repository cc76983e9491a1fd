#include "gil.h"

#include <cxxabi.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>

namespace haulway::python {

namespace {

// How late a signal may be seen.
constexpr std::chrono::milliseconds kLook{50};

[[noreturn]] void HangForEver() {
  for (;;) pause();
}

// Python runs the handlers of signals on this one alone.
bool IsMainThread() { return syscall(SYS_gettid) == getpid(); }

}  // namespace

bool PythonRuns() {
#if PY_VERSION_HEX >= 0x030D0000
  return Py_IsInitialized() != 0 && Py_IsFinalizing() == 0;
#else
  return Py_IsInitialized() != 0 && _Py_IsFinalizing() == 0;
#endif
}

GilReleased::~GilReleased() {
  try {
    PyEval_RestoreThread(state_);
  } catch (const abi::__forced_unwind&) {
    // CPython before 3.14 ends the thread with pthread_exit().
    HangForEver();
  }
}

GilHeld::GilHeld() {
  // The thread that ends Python still holds it.
  if (Py_IsInitialized() == 0) return;
  if (!PythonRuns() && PyGILState_Check() == 0) return;
  try {
    state_ = PyGILState_Ensure();
    held_ = true;
  } catch (const abi::__forced_unwind&) {
    HangForEver();
  }
}

GilHeld::~GilHeld() {
  if (held_) PyGILState_Release(state_);
}

bool RunMindingSignals(const std::function<void()>& work,
                       std::atomic<bool>* cancel) {
  std::mutex mutex;
  std::condition_variable ended;
  bool has_ended = false;
  std::exception_ptr thrown;
  std::thread worker;
  if (IsMainThread()) {
    try {
      worker = std::thread([&] {
        try {
          work();
        } catch (...) {
          thrown = std::current_exception();
        }
        const std::lock_guard lock(mutex);
        has_ended = true;
        ended.notify_one();
      });
    } catch (const std::system_error&) {
      // Without another thread signals wait.
    }
  }
  if (!worker.joinable()) {
    const GilReleased released;
    work();
    return true;
  }
  PyObject* type = nullptr;
  PyObject* value = nullptr;
  PyObject* trace = nullptr;
  for (;;) {
    {
      const GilReleased released;
      std::unique_lock lock(mutex);
      if (ended.wait_for(lock, kLook, [&] { return has_ended; })) break;
    }
    if (PyErr_CheckSignals() == 0) continue;
    cancel->store(true);
    if (type == nullptr) {
      PyErr_Fetch(&type, &value, &trace);
    } else {
      PyErr_Clear();  // The first counts.
    }
  }
  worker.join();
  if (type != nullptr) {
    PyErr_Restore(type, value, trace);
    return false;
  }
  if (thrown != nullptr) std::rethrow_exception(thrown);
  return true;
}

}  // namespace haulway::python
