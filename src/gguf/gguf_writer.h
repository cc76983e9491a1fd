// Writes named tensors as a GGUF file.

#pragma once

#include <memory>

#include "haulway/layout.h"
#include "haulway/save.h"
#include "haulway/status.h"

namespace haulway::gguf {

// Lays out a file that equals that of the gguf package's writer byte for byte,
// for the same values in the same order, beginning with "general.architecture".
// Tensors of blocks have items of bytes. Fails with kUnsupported for types that
// the format lacks and for more than four dimensions. Fails with
// kInvalidArgument for tensor names of 64 bytes or more, keys that no reader
// accepts, metadata without "general.architecture", an alignment that is not a
// power of two, and rows that are not whole blocks.
Result<std::unique_ptr<const Layout>> LayOutTensors(
    const TensorsToWrite& tensors, const SaveOptions& options);

}  // namespace haulway::gguf
