// What loading is told, and what it tells, in Python's terms.

#pragma once

#include <nanobind/nanobind.h>

#include <string_view>

#include "haulway/load.h"

namespace haulway::python {

// Raises InvalidArgumentError for a word that is none.
IoMode IoModeOf(std::string_view io);

nanobind::dict StatsDict(const LoadStats& stats);

}  // namespace haulway::python
