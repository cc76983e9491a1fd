// Converts load options and statistics between Python and the library.

#pragma once

#include <nanobind/nanobind.h>

#include <string_view>

#include "base/fields.h"
#include "base/progress.h"
#include "haulway/checkpoint.h"
#include "haulway/load.h"
#include "haulway/open.h"
#include "haulway/save.h"

namespace haulway::python {

// Converts a dict of the options of OpenOptions. A missing or None option keeps
// its default. Raises TypeError for any other name.
OpenOptions OpenOptionsOf(nanobind::dict named);

// Converts a dict of the options of RemoteOptions, which override the
// environment.
RemoteOptions RemoteOptionsOf(nanobind::dict named);

// Returns what opens a path or URL for writing, with a dict of the options of
// RemoteOptions. overwrite: an object that is there is replaced.
SinkOpener OpenerOf(nanobind::dict remote, bool overwrite);

// Converts a dict of the options of LoadOptions; also takes `memory`, the
// VersionMemory to load into.
LoadOptions LoadOptionsOf(nanobind::dict named);

// Registers StorageStream.
void BindLoading(nanobind::module_& module);

}  // namespace haulway::python
