// Writes the zip container as torch.save() lays it out.

#pragma once

#include <memory>
#include <string>
#include <vector>

#include "haulway/archive.h"
#include "haulway/layout.h"
#include "haulway/save.h"
#include "haulway/status.h"

namespace haulway::torch {

// Lays out the pickle, the records about the format, and the storages as
// data/0, data/1, ..., which are their names in the pickle. The layout owns its
// arguments. Fails as LayOutArchive() does.
Result<std::unique_ptr<const Layout>> LayOutCheckpoint(
    std::string pickle, std::vector<BytesToWrite> storages,
    const ArchiveWriterOptions& options);

// Lays out a dict of the tensors by name, byte for byte as torch.save() writes
// it. A storage that several tensors view is one record. Fails with
// kUnsupported for a dtype that torch cannot save as a plain tensor (quantized)
// or at all, and for a storage that is viewed as two dtypes.
Result<std::unique_ptr<const Layout>> LayOutTensors(
    const TensorsToWrite& tensors, const SaveOptions& options);

// Lays out one tensor, which must not be a view, byte for byte as torch.save()
// writes it. `tensor` must outlive the layout. Fails as LayOutTensors() does.
Result<std::unique_ptr<const Layout>> LayOutTensor(
    const TensorToWrite& tensor, const ArchiveWriterOptions& options);

}  // namespace haulway::torch
