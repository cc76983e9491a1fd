// A directory of torch.distributed.checkpoint as one checkpoint.

#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "haulway/format.h"
#include "haulway/source.h"
#include "haulway/status.h"
#include "haulway/verify.h"

namespace haulway::dcp {

// Opens the directory in which `source`, its `.metadata`, lies; one named
// `__N.metadata` leads to those of all ranks. Reads that file and the objects;
// data files are opened when tensors are read, of a server, else at once. A
// `meta.pt` beside them, of a local directory, is the entry "meta".
Result<std::unique_ptr<const FormatReader>> OpenDirectory(
    std::shared_ptr<const ByteSource> source, const OpenOptions& options);

// Checks every archive that the metadata name: all that is in it, its
// CRC-32s, and that it holds the tensor that it must.
Result<VerifyReport> VerifyDirectory(std::shared_ptr<const ByteSource> source,
                                     const VerifyOptions& options);

// One chunk, and where its elements lie, row-major, in a file.
struct ChunkOfTensor {
  std::string_view tensor;
  std::span<const int64_t> offsets;
  std::span<const int64_t> sizes;
  std::string_view file;  // A path down from the directory.
  uint64_t offset = 0;
  uint64_t nbytes = 0;
};

// Where the data of every chunk of an open directory lie, in the order of the
// state dict; chunks without elements are left out. Reads the heads of those
// that were not read yet. The views live as long as the reader. Fails with
// kInvalidArgument for a reader of another format, else as reading does.
Result<std::vector<ChunkOfTensor>> ListChunks(const FormatReader& reader);

}  // namespace haulway::dcp
