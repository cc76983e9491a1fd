// Tensors as npy and npz files.

#pragma once

#include <memory>

#include "haulway/layout.h"
#include "haulway/save.h"
#include "haulway/status.h"

namespace haulway::npy {

// A file of one array; its name is not written. Fails with kUnsupported for a
// dtype that NumPy lacks and for any other number of tensors than one.
Result<std::unique_ptr<const Layout>> LayOutNpy(const TensorsToWrite& tensors,
                                                const SaveOptions& options);

// The bytes are those of numpy.savez(). Fails with kUnsupported for a dtype
// that NumPy lacks, and with kInvalidArgument for names that no zip can have.
Result<std::unique_ptr<const Layout>> LayOutNpz(const TensorsToWrite& tensors,
                                                const SaveOptions& options);

}  // namespace haulway::npy
