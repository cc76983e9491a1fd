// What loading is told, and what it tells, in Python's terms.

#pragma once

#include <nanobind/nanobind.h>

#include <string_view>

#include "base/fields.h"
#include "base/progress.h"
#include "haulway/checkpoint.h"
#include "haulway/load.h"
#include "haulway/open.h"

namespace haulway::python {

// Options by the names of the table of OpenOptions; what is missing or None
// stays as it is. Raises TypeError for any other name.
OpenOptions OpenOptionsOf(nanobind::dict named);

// The same by the table of RemoteOptions, over those of the environment.
RemoteOptions RemoteOptionsOf(nanobind::dict named);

// The same by the table of LoadOptions, and `memory`, a VersionMemory to load
// into.
LoadOptions LoadOptionsOf(nanobind::dict named);

// Registers StorageStream.
void BindLoading(nanobind::module_& module);

}  // namespace haulway::python
