// This process: its environment, for the options of haulway._config, its part
// of the machine, and its exit code.

#include <nanobind/nanobind.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "bind/bindings.h"
#include "haulway/machine.h"

namespace nb = nanobind;

namespace haulway::python {

namespace {

// Calls `look` with the name of each variable of the environment.
template <class Look>
void ForEachVariable(const Look& look) {
#ifdef Py_GIL_DISABLED
  // Another thread may change the environment meanwhile, and free the array
  // that the system has of it.
  const nb::object names = nb::steal(
      PySequence_List(nb::module_::import_("os").attr("environ").ptr()));
  if (!names.is_valid()) throw nb::python_error();
  for (const nb::handle name : nb::borrow<nb::list>(names)) look(name);
#else
  // Python changes the environment with the GIL only.
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const char* const end = std::strchr(*entry, '=');
    if (end == nullptr) continue;
    PyObject* const text =
        PyUnicode_DecodeUTF8(*entry, end - *entry, "surrogateescape");
    if (text == nullptr) throw nb::python_error();
    look(nb::steal(text));
  }
#endif
}

}  // namespace

void BindEnvironment(nb::module_& module) {
  // Returns the names in a frozenset that are set in the environment.
  module.def("variables_among", [](const nb::frozenset& names) {
    nb::list found;
    ForEachVariable([&](nb::handle name) {
      const int is_among = PySet_Contains(names.ptr(), name.ptr());
      if (is_among < 0) throw nb::python_error();
      if (is_among == 1) found.append(name);
    });
    return found;
  });

  module.def("usable_cpus", [] { return UsableCpus(); });
  module.def("available_memory",
             [] { return LookAtMachine().available_memory; });

  // Makes the exit code 1 if it would be 0. Python has no way to do so once its
  // main thread has ended. A C library without on_exit() keeps the 0.
  module.def("fail_at_exit", [] {
#ifdef __GLIBC__
    // glibc lets a function that exit() runs call it again.
    on_exit(
        [](int code, void*) {
          if (code == 0) exit(1);
        },
        nullptr);
#endif
  });
}

}  // namespace haulway::python
