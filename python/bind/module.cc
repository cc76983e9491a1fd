// The extension module haulway._haulway. It is private; the API is the package
// around it.

#include <nanobind/nanobind.h>

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
  haulway::python::BindCheckpoint(module);
  haulway::python::BindRemote(module);
  haulway::python::BindSelect(module);
  haulway::python::BindTensors(module);
  haulway::python::BindLoading(module);
  haulway::python::BindVerify(module);
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

// Called by every interpreter that imports the module. nanobind has one state
// for the process: another interpreter would take the state of the first one,
// where every call would then fail, and would itself wait forever for the GIL.
extern "C" NB_EXPORT PyObject* PyInit__haulway(void) {
  if (PyInterpreterState_Get() != PyInterpreterState_Main()) {
    PyErr_SetString(PyExc_ImportError,
                    "haulway works in the main interpreter of a process only, "
                    "not in a subinterpreter: expected another process, or for "
                    "mod_wsgi `WSGIApplicationGroup %{GLOBAL}`");
    return nullptr;
  }
  return PyInit__haulway_of_main();
}
