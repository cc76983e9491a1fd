// Tensors by name as a safetensors file.

#pragma once

#include <memory>

#include "haulway/layout.h"
#include "haulway/save.h"
#include "haulway/status.h"

namespace haulway::safetensors {

// Lays out a file byte for byte as the reference writer does for up to one key
// of metadata; keys are sorted. Tensors start at a multiple of 8, or of the
// alignment that `options` has, which must be one, too. `what` outlives the
// layout; its names differ. Fails with kInvalidArgument for names that are not
// UTF-8, and bytes that do not match the shape; with kUnsupported for a dtype
// that the format lacks.
Result<std::unique_ptr<const Layout>> LayOutTensors(const TensorsToWrite& what,
                                                    const SaveOptions& options);

}  // namespace haulway::safetensors
