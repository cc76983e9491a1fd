// What LayOut() of save.h asks of tensors, for formats that are laid out
// otherwise.

#pragma once

#include "haulway/format.h"
#include "haulway/save.h"
#include "haulway/status.h"

namespace haulway {

// Checks names, sizes and options, and replaces views by the bytes of their
// tensors where the format has no views. Fails as LayOut() does.
Status SettleTensors(const FormatEntry& format, const SaveOptions& options,
                     TensorsToWrite* tensors);

}  // namespace haulway
