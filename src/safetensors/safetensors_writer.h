// Writes named tensors as a safetensors file.

#pragma once

#include <memory>

#include "haulway/layout.h"
#include "haulway/save.h"
#include "haulway/status.h"

namespace haulway::safetensors {

// Lays out a file byte for byte as the reference writer does for up to one key
// of metadata; keys are sorted. Tensors start at a multiple of 8, or of the
// alignment in `options`, which must be a multiple of 8 too. `what` must
// outlive the layout, and its names must differ. Fails with kInvalidArgument
// for names that are not UTF-8 and for bytes that do not match the shape; with
// kUnsupported for a dtype that the format lacks.
Result<std::unique_ptr<const Layout>> LayOutTensors(const TensorsToWrite& what,
                                                    const SaveOptions& options);

}  // namespace haulway::safetensors
