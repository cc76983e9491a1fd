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

// Options by the names of their fields in OpenOptions, strictness as the bool
// `strict`, `key` and `passphrase` as bytes; what is missing or None stays as
// it is. Raises TypeError for any other name.
OpenOptions OpenOptionsOf(nanobind::dict named);

// Options by their names in _options.REMOTE, over those of the environment.
// Raises TypeError for any other name.
RemoteOptions RemoteOptionsOf(nanobind::dict named);

// Options by the names of the table of LoadOptions, io as a word, and `memory`,
// a VersionMemory to load into; what is missing or None stays as it is. Raises
// TypeError for any other name.
LoadOptions LoadOptionsOf(nanobind::dict named);

// Registers StorageStream.
void BindLoading(nanobind::module_& module);

}  // namespace haulway::python
