// Carries the layout of a Tensorizer file over to a new one.

#pragma once

#include "haulway/checkpoint.h"
#include "haulway/tensorizer.h"
#include "tensorizer/tensorizer_reader.h"

namespace haulway::convert {

// Returns the options that give a new file the same layout and metadata,
// without a key.
TensorizerOptions LayoutOf(const Checkpoint& from,
                           const tensorizer::Reader& reader);

}  // namespace haulway::convert
