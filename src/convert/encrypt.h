// How a Tensorizer file is laid out, for another that is to be so.

#pragma once

#include "haulway/checkpoint.h"
#include "haulway/tensorizer.h"
#include "tensorizer/tensorizer_reader.h"

namespace haulway::convert {

// What of a file's layout a new one can keep, metadata too; no key.
TensorizerOptions LayoutOf(const Checkpoint& from,
                           const tensorizer::Reader& reader);

}  // namespace haulway::convert
