// Saving: which format a name asks for.

#pragma once

#include <string_view>

#include "haulway/export.h"
#include "haulway/index.h"
#include "haulway/layout.h"
#include "haulway/status.h"

namespace haulway {

// The format that a file of this name is written in: what its ending says,
// without regard to case, and torch's for an ending that means nothing. Fails
// with kUnsupported for the ending of a format that is not written, so that no
// file says what it is not.
HAULWAY_EXPORT Result<Format> FormatToWrite(std::string_view path);

// Fails with kUnsupported if the name ends as files of another format do.
HAULWAY_EXPORT Status CheckEnding(std::string_view path, Format format);

// The format of that name, as Name() spells it. Fails with kUnsupported for
// one that is not written.
HAULWAY_EXPORT Result<Format> FormatToWriteByName(std::string_view name);

}  // namespace haulway
