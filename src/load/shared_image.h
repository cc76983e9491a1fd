// The content of a memory file that holds a loaded checkpoint
// (docs/destinations.md): a header, the storages' bytes as tensors use them,
// and an index. The index says where each storage lies. It also holds the bytes
// of the checkpoint's files that the reader reads when it opens them.
//
//   0             8             16            24
//   | magic (8)   | index offset | index bytes | zeros to 4096 | storages ...
//
// Index; all numbers are little-endian, without padding:
//
//   u32 file count
//     u32 name bytes, name; u64 file size; u32 range count
//       u64 offset, u64 length, bytes
//   u32 storage count
//     u64 offset in the memory file, or all ones: not loaded; u64 length
//   u32 1 if only some entries were asked for, else 0
//   u32 entry count
//     u32 row of the checkpoint's entries

#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "haulway/status.h"
#include "load/recorded_source.h"

namespace haulway {

inline constexpr uint64_t kSharedHeaderBytes = 4096;
inline constexpr uint64_t kNotShared = std::numeric_limits<uint64_t>::max();

struct SharedRange {
  uint64_t offset = kNotShared;  // Offset in the memory file.
  uint64_t length = 0;
};

struct SharedIndex {
  std::vector<ReplayedFile> files;
  std::vector<SharedRange> storages;  // Parallel to the checkpoint's storages.
  // Selected entries; nullopt for all.
  std::optional<std::vector<uint32_t>> entries;
};

// Encodes the index. Requires: every count is below 2^32.
std::vector<std::byte> EncodeSharedIndex(
    const std::vector<Recording::File>& files,
    std::span<const SharedRange> storages,
    const std::optional<std::vector<uint32_t>>& entries);

// Encodes the header of a memory file. `offset` and `bytes`: place and size of
// the index.
std::vector<std::byte> EncodeSharedHeader(uint64_t offset, uint64_t bytes);

// Parses a whole memory file. Names and ranges of the result point into
// `image`. Checks that they, and the storages, are within bounds. Fails with
// kCorrupt or kTruncated.
Result<SharedIndex> ParseSharedImage(std::span<const std::byte> image);

}  // namespace haulway
