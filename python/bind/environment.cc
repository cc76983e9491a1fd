// Reads this process's environment for the options of haulway._config.

#include <nanobind/nanobind.h>
#include <unistd.h>

#include <cstring>

#include "bind/bindings.h"

namespace nb = nanobind;

namespace haulway::python {

void BindEnvironment(nb::module_& module) {
  // Returns the names in a frozenset that are set in the environment. Safe
  // because Python changes the environment only with the GIL held.
  module.def("variables_among", [](const nb::frozenset& names) {
    nb::list found;
    for (char** entry = environ; entry != nullptr && *entry != nullptr;
         ++entry) {
      const char* const end = std::strchr(*entry, '=');
      if (end == nullptr) continue;
      PyObject* const text =
          PyUnicode_DecodeUTF8(*entry, end - *entry, "surrogateescape");
      if (text == nullptr) throw nb::python_error();
      const nb::object name = nb::steal(text);
      const int is_among = PySet_Contains(names.ptr(), name.ptr());
      if (is_among < 0) throw nb::python_error();
      if (is_among == 1) found.append(name);
    }
    return found;
  });
}

}  // namespace haulway::python
