// The command line, for the script that Python installers generate.

#pragma once

#include <nanobind/nanobind.h>

namespace haulway::python {

void BindCommand(nanobind::module_& module);

}  // namespace haulway::python
