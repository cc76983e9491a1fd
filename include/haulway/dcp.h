// Where the tensors of a directory of torch.distributed.checkpoint lie in its
// files: for who reads chunks into places of their own.

#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "haulway/format.h"
#include "haulway/status.h"

namespace haulway {

// One chunk, a rectangle of a tensor, and where its elements lie, row-major, in
// a file. Offsets and sizes are in elements, by dimension.
struct StoredChunk {
  std::string_view tensor;
  std::span<const int64_t> offsets;
  std::span<const int64_t> sizes;
  std::string_view file;  // A path down from the directory.
  uint64_t offset = 0;    // In the file, in bytes.
  uint64_t nbytes = 0;
};

// The chunks of an open directory, in the order of its tensors; those without
// elements are left out. Reads the heads of those that were not read yet. The
// views live as long as the reader. Fails with kInvalidArgument for a
// checkpoint of another format, else as reading does.
HAULWAY_EXPORT Result<std::vector<StoredChunk>> ListChunks(
    const FormatReader& reader);

}  // namespace haulway
