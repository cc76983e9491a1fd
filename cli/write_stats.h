// Statistics of writing, as --json prints them.

#pragma once

#include "haulway/layout.h"
#include "output.h"

namespace haulway::cli {

// Adds the fields of WriteStats to an object.
void AddStats(const WriteStats& stats, Json* json);

}  // namespace haulway::cli
