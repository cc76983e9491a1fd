// The checks of LayOut() in save.h, for formats with another kind of layout.

#pragma once

#include "haulway/format.h"
#include "haulway/save.h"
#include "haulway/status.h"

namespace haulway {

// Checks names, sizes and options, and replaces views by their bytes if the
// format has no views. Fails as LayOut() does.
Status SettleTensors(const FormatEntry& format, const SaveOptions& options,
                     TensorsToWrite* tensors);

}  // namespace haulway
