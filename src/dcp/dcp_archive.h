// One chunk as it is stored: an archive of torch.save that holds one tensor.
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

// What the beginning of an archive says.
struct ArchiveHead {
  uint64_t payload = 0;  // Where the record data/0 begins in the archive.
  std::span<const std::byte> pickle;  // The record data.pkl.
};

// Finds data/0 by the records in front of it. `head` is the beginning of an
// archive of `length` bytes, or all of it. Returns nullopt if it ends before
// data/0 begins. Fails with kCorrupt, at the byte of the archive, for what is
// no such archive, and kUnsupported for one that is big-endian or compressed.
Result<std::optional<ArchiveHead>> ParseArchiveHead(
    std::span<const std::byte> head, uint64_t length);

// The tensor that a chunk must be.
struct ExpectedTensor {
  DType dtype = DType::kU8;
  std::span<const int64_t> sizes;
};

// How the elements of a tensor lie in data/0, without others between them.
struct ChunkOrder {
  uint64_t first = 0;            // Bytes in front of them.
  std::vector<int64_t> strides;  // In elements; empty: row-major.
};

// The order of the tensor that `pickle` describes. Fails with kUnsafe for a
// pickle that is not only data, kCorrupt if it is another tensor than expected,
// and kUnsupported if it leaves out elements, repeats them or changes them.
Result<ChunkOrder> CheckChunkPickle(std::span<const std::byte> pickle,
                                    const ExpectedTensor& expected,
                                    const ParseLimits& limits);

// The CRC-32 of a payload of `nbytes` by the descriptor that follows it, of
// which `after` are the first bytes (kDescriptorBytes, or those there are).
// Fails with kCorrupt if there is none or it is of another length.
inline constexpr uint64_t kDescriptorBytes = 24;
Result<uint32_t> ParseDescriptor(std::span<const std::byte> after,
                                 uint64_t nbytes);

}  // namespace haulway::dcp
