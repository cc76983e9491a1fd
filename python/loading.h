// What loading takes and says, between Python and the library.

#pragma once

#include <nanobind/nanobind.h>

#include <string_view>

#include "haulway/load.h"

namespace haulway::python {

// "auto", "mmap", ...; raises for any other.
IoMode IoModeOf(std::string_view io);

nanobind::dict StatsDict(const LoadStats& stats);

}  // namespace haulway::python
