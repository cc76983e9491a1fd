// The extension module haulway._haulway. It is private; the API is the package
// around it.

#include <nanobind/nanobind.h>

#include <vector>

#include "base/memory.h"
#include "bind/bindings.h"
#include "bind/command.h"
#include "bind/loading.h"
#include "haulway/source.h"
#include "pickling/pickle_object.h"

NB_MODULE(_haulway_of_main, module) {
  module.attr("__version__") = HAULWAY_VERSION;
  haulway::InstallSigbusGuard();
  // Objects that are still alive at exit are not leaks; tests enable the
  // warnings.
  nanobind::set_leak_warnings(false);
  module.def("warn_of_leaks", [](bool on) { nanobind::set_leak_warnings(on); });
  haulway::python::BindMemory(module);
  haulway::python::BindEnvironment(module);
  haulway::python::BindFormats(module);
  haulway::python::BindOptions(module);
  haulway::python::BindDcp(module);
  haulway::python::BindDelta(module);
  haulway::python::BindDeltaApply(module);
  haulway::python::BindSigning(module);
  haulway::python::BindCheckpoint(module);
  haulway::python::BindRemote(module);
  haulway::python::BindRuns(module);
  haulway::python::BindSelect(module);
  haulway::python::BindTensors(module);
  haulway::python::BindLoading(module);
  haulway::python::BindVerify(module);
  haulway::python::BindVersionPublisher(module);
  haulway::python::BindFolder(module);
  haulway::python::BindArchive(module);
  haulway::python::BindPickleObject(module);
  haulway::python::BindSave(module);
  haulway::python::BindConvert(module);
  haulway::python::BindCompare(module);
  haulway::python::BindSafetensors(module);
  haulway::python::BindLegacy(module);
  haulway::python::BindTensorizer(module);
  haulway::python::BindArena(module);
  haulway::python::BindChannel(module);
  haulway::python::BindShared(module);
  haulway::python::BindPublish(module);
  haulway::python::BindDevice(module);
  haulway::python::BindItems(module);
  haulway::python::BindCommand(module);
}

namespace {

// nanobind has one state for the process: another interpreter would take the
// state of the first one, where every call would then fail, and would itself
// wait forever for the GIL.
int RefuseSubinterpreter(PyObject*) {
  if (PyInterpreterState_Get() == PyInterpreterState_Main()) return 0;
  PyErr_SetString(PyExc_ImportError,
                  "haulway works in the main interpreter of a process only, "
                  "not in a subinterpreter: expected another process, or for "
                  "mod_wsgi `WSGIApplicationGroup %{GLOBAL}`");
  return -1;
}

}  // namespace

// Python 3.13 and later call this function in the main interpreter, whichever
// imports the module; there only slots run in the importing one.
extern "C" NB_EXPORT PyObject* PyInit__haulway(void) {
  if (RefuseSubinterpreter(nullptr) != 0) return nullptr;
  PyObject* const made = PyInit__haulway_of_main();
  if (made == nullptr) return nullptr;
  auto* const definition = reinterpret_cast<PyModuleDef*>(made);
  static std::vector<PyModuleDef_Slot> slots;
  if (slots.empty()) {
    slots.push_back(
        {Py_mod_exec, reinterpret_cast<void*>(RefuseSubinterpreter)});
    const PyModuleDef_Slot* slot = definition->m_slots;
    while (slot->slot != 0) slots.push_back(*slot++);
    slots.push_back({0, nullptr});
    definition->m_slots = slots.data();
  }
  return made;
}
