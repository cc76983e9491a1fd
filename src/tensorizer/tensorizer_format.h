// The records of a tensorizer file: index entries and tensor headers. A codec:
// bytes to facts and back, no I/O.

#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/sha256.h"
#include "haulway/dtype.h"
#include "haulway/format.h"
#include "haulway/status.h"
#include "tensorizer/tensorizer_layout.h"

namespace haulway::tensorizer {

enum class TensorType : uint8_t { kParameter, kBuffer, kStateDict };

struct IndexEntry {
  // Views of the index.
  std::string_view name;  // Raw; tensorizer_name.h parses it.
  std::span<const std::byte> dtype_and_dims;
  TensorType type = TensorType::kParameter;
  DType dtype = DType::kU8;
  bool long_dims = false;
  bool meta = false;  // Has elements but no data.
  uint8_t rank = 0;
  uint32_t first_dim = 0;      // Position in TensorIndex::dims.
  uint64_t header_offset = 0;  // Absolute in every layout.
  uint64_t data_offset = 0;
  uint64_t data_bytes = 0;  // Stored size of the data.
  uint64_t nbytes = 0;      // Size of all elements in bytes.
};

struct TensorIndex {
  std::vector<IndexEntry> entries;
  std::vector<int64_t> dims;
  uint64_t end_mark = 0;  // Where the data ends.

  std::span<const int64_t> shape(const IndexEntry& entry) const {
    return std::span(dims).subspan(entry.first_dim, entry.rank);
  }
};

// Parses the index by rules F05, I02, I03 in part (an empty name, a path that
// is not a state-dict element), I05 to I10, X04 and X05. `bytes` is the index
// region; the result refers to it. Sets the layout if the preamble did not
// determine it.
Result<TensorIndex> ParseIndex(std::span<const std::byte> bytes,
                               uint64_t file_bytes, const OpenOptions& options,
                               Preamble* preamble);

struct TensorHeader {
  uint16_t module_index = 0;
  std::optional<uint32_t> crc32;
  std::optional<Sha256Value> sha256;
  // The crypt block without its length. Empty if the file is not encrypted.
  std::span<const std::byte> crypt;
  // Positions in the header: the hash block including its length, each hash
  // value, the end of the crypt block.
  size_t hash_block = 0;
  size_t hash_block_end = 0;
  size_t crc32_value = 0;   // 0 if there is none.
  size_t sha256_value = 0;  // 0 if there is none.
  size_t crypt_end = 0;
};

// Parses a header by rules H01 to H07. `bytes` has the length that the header
// states.
Result<TensorHeader> ParseTensorHeader(std::span<const std::byte> bytes,
                                       const IndexEntry& entry,
                                       const Preamble& preamble,
                                       Strictness strictness);

// Returns the bytes that the digests of a header cover before the data.
// Requires: the rule is not kEither, and `header` was parsed from `bytes`.
std::vector<std::byte> HashedHeader(std::span<const std::byte> bytes,
                                    const TensorHeader& header, HashRule rule);

}  // namespace haulway::tensorizer
