// Writing the zip container as torch.save lays it out.

#pragma once

#include <memory>
#include <string>
#include <vector>

#include "haulway/archive.h"
#include "haulway/layout.h"
#include "haulway/save.h"
#include "haulway/status.h"

namespace haulway::torch {

// The pickle, the records about the format, and the storages as data/0,
// data/1, ..., by which the pickle names them. The layout owns what it is
// given. Fails as LayOutArchive() does.
Result<std::unique_ptr<const Layout>> LayOutCheckpoint(
    std::string pickle, std::vector<BytesToWrite> storages,
    const ArchiveWriterOptions& options);

// A dict of the tensors by name, byte for byte as torch.save() writes it. Of a
// storage that several tensors view there is one record. Fails with
// kUnsupported for a dtype that torch cannot save without more (quantized) or
// at all, and a storage that is viewed as two dtypes.
Result<std::unique_ptr<const Layout>> LayOutTensors(
    const TensorsToWrite& tensors, const SaveOptions& options);

// One tensor, which must have no view, byte for byte as torch.save() writes it.
// `tensor` must outlive the layout. Fails as LayOutTensors() does.
Result<std::unique_ptr<const Layout>> LayOutTensor(
    const TensorToWrite& tensor, const ArchiveWriterOptions& options);

}  // namespace haulway::torch
