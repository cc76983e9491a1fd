// Tensors by name as a safetensors file.

#pragma once

#include <memory>

#include "haulway/layout.h"
#include "haulway/save.h"
#include "haulway/status.h"

namespace haulway::safetensors {

// Fails as LayOutSafetensors() does.
Result<std::unique_ptr<const Layout>> LayOutTensors(
    const TensorsToWrite& tensors, const SaveOptions& options);

}  // namespace haulway::safetensors
