// Writes tensors as npy and npz files.

#pragma once

#include <memory>

#include "haulway/layout.h"
#include "haulway/save.h"
#include "haulway/status.h"

namespace haulway::npy {

// Lays out a file with one array; the name is not stored. Fails with
// kUnsupported for a dtype that NumPy lacks, and unless there is exactly one
// tensor.
Result<std::unique_ptr<const Layout>> LayOutNpy(const TensorsToWrite& tensors,
                                                const SaveOptions& options);

// Lays out a file that equals that of numpy.savez() byte for byte. Fails with
// kUnsupported for a dtype that NumPy lacks, and with kInvalidArgument for
// names that a zip cannot store.
Result<std::unique_ptr<const Layout>> LayOutNpz(const TensorsToWrite& tensors,
                                                const SaveOptions& options);

}  // namespace haulway::npy
