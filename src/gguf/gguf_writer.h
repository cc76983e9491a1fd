// Tensors by name as a GGUF file.

#pragma once

#include <memory>

#include "haulway/layout.h"
#include "haulway/save.h"
#include "haulway/status.h"

namespace haulway::gguf {

// The bytes are those of the gguf package's writer for the same values in the
// same order, which begins with "general.architecture". Tensors of blocks have
// items of bytes. Fails with kUnsupported for types that the format lacks and
// more than four dimensions, and with kInvalidArgument for names of tensors of
// 64 bytes and more, keys that no reader would take, metadata without
// "general.architecture", an alignment that is no power of two, and rows that
// are no whole blocks.
Result<std::unique_ptr<const Layout>> LayOutTensors(
    const TensorsToWrite& tensors, const SaveOptions& options);

}  // namespace haulway::gguf
