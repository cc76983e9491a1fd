#include "base/gil.h"

#include <sys/syscall.h>
#include <unistd.h>
#include <unwind.h>

#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>

#include "haulway/options.h"

extern "C" {

// What the stack is unwound by, for each function that has a say in it. The
// linker lets every function of this module say __wrap_ instead (--wrap).
_Unwind_Reason_Code __real___gxx_personality_v0(int, _Unwind_Action,
                                                _Unwind_Exception_Class,
                                                _Unwind_Exception*,
                                                _Unwind_Context*);

// CPython before 3.14 ends a thread that wants the GIL while Python ends by
// pthread_exit(), which unwinds its stack: destructors would run without the
// GIL, and whatever is noexcept would end the process. As in 3.14, the thread
// stops here for ever instead, before anything of this module is undone.
_Unwind_Reason_Code __wrap___gxx_personality_v0(int version,
                                                _Unwind_Action actions,
                                                _Unwind_Exception_Class kind,
                                                _Unwind_Exception* exception,
                                                _Unwind_Context* context) {
  if ((actions & _UA_FORCE_UNWIND) != 0 && !haulway::python::PythonRuns()) {
    for (;;) pause();
  }
  return __real___gxx_personality_v0(version, actions, kind, exception,
                                     context);
}

}  // extern "C"

namespace haulway::python {

namespace {

// How late a signal may be seen.
constexpr std::chrono::milliseconds kLook{50};

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

GilHeld::GilHeld() {
  // The thread that ends Python still holds it.
  if (Py_IsInitialized() == 0) return;
  if (!PythonRuns() && PyGILState_Check() == 0) return;
  state_ = PyGILState_Ensure();
  held_ = true;
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
        // Waits for servers end with it, too.
        const CancelScope scope(cancel);
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
