// Parses one stored chunk: an archive of torch.save() that contains one tensor.
//
// A codec: bytes in, facts out, no I/O.

#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "haulway/dtype.h"
#include "haulway/options.h"
#include "haulway/status.h"

namespace haulway::dcp {

// Facts from the beginning of an archive.
struct ArchiveHead {
  uint64_t payload = 0;  // Offset of the record data/0 in the archive.
  std::span<const std::byte> pickle;  // The record data.pkl.
};

// Finds data/0 by the records before it. `head` is the beginning of an archive
// of `length` bytes, or all of it. Returns nullopt if `head` ends before data/0
// begins. Fails with kCorrupt, at the byte in the archive, if it is not such an
// archive, and with kUnsupported if it is big-endian or compressed.
Result<std::optional<ArchiveHead>> ParseArchiveHead(
    std::span<const std::byte> head, uint64_t length);

// The tensor that a chunk must contain.
struct ExpectedTensor {
  DType dtype = DType::kU8;
  std::span<const int64_t> sizes;
};

// The order of a tensor's elements in data/0, which contains no other elements
// between them.
struct ChunkOrder {
  uint64_t first = 0;            // Byte offset of the first element.
  std::vector<int64_t> strides;  // In elements; empty for row-major.
};

// Returns the order of the tensor that `pickle` describes. Fails with kUnsafe
// for a pickle that is not only data, with kCorrupt if the tensor is not the
// expected one, and with kUnsupported if it omits, repeats or changes elements.
Result<ChunkOrder> CheckChunkPickle(std::span<const std::byte> pickle,
                                    const ExpectedTensor& expected,
                                    const ParseLimits& limits);

// Returns the CRC-32 of a payload of `nbytes` from the descriptor after it.
// `after` is the first kDescriptorBytes after the payload, or all there are.
// Fails with kCorrupt if there is no descriptor or it has another length.
inline constexpr uint64_t kDescriptorBytes = 24;
Result<uint32_t> ParseDescriptor(std::span<const std::byte> after,
                                 uint64_t nbytes);

}  // namespace haulway::dcp
