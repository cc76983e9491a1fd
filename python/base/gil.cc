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

// The C++ personality routine, which runs cleanups while a stack is unwound.
// The linker option --wrap redirects this module's references to the __wrap_
// function below.
_Unwind_Reason_Code __real___gxx_personality_v0(int, _Unwind_Action,
                                                _Unwind_Exception_Class,
                                                _Unwind_Exception*,
                                                _Unwind_Context*);

// If the interpreter is finalizing, CPython before 3.14 ends a thread that
// requests the GIL with pthread_exit(), which unwinds its stack: destructors
// would run without the GIL, and a noexcept function would terminate the
// process. As in 3.14, the thread hangs here instead, before any frame of this
// module is unwound.
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

// The longest time that a signal waits to be seen.
constexpr std::chrono::milliseconds kLook{50};

}  // namespace

bool IsMainThread() { return syscall(SYS_gettid) == getpid(); }

bool PythonRuns() {
#if PY_VERSION_HEX >= 0x030D0000
  return Py_IsInitialized() != 0 && Py_IsFinalizing() == 0;
#else
  return Py_IsInitialized() != 0 && _Py_IsFinalizing() == 0;
#endif
}

GilHeld::GilHeld() {
  // The thread that finalizes the interpreter still holds the GIL.
  if (Py_IsInitialized() == 0) return;
  if (!PythonRuns() && PyGILState_Check() == 0) return;
  state_ = PyGILState_Ensure();
  held_ = true;
}

GilHeld::~GilHeld() {
  if (held_) PyGILState_Release(state_);
}

std::shared_ptr<PyObject> HeldAnywhere(nanobind::handle object) {
  return {object.inc_ref().ptr(), [](PyObject* held) {
            const GilHeld gil;
            if (gil) Py_DECREF(held);
          }};
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
        // `cancel` also ends waits for servers.
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
      // If no thread can be started, signals wait until `work` is done.
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
      PyErr_Clear();  // The first exception wins.
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
