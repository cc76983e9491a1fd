// The counterpart of tensorizer_format.h: encodes facts as the released writers
// do.

#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/sha256.h"
#include "tensorizer/tensorizer_format.h"
#include "tensorizer/tensorizer_layout.h"

namespace haulway::tensorizer {

// The fields that index entry and header share.
struct TensorFields {
  std::string name;
  std::string dtype;
  TensorType type = TensorType::kStateDict;
  bool long_dims = false;
  std::vector<uint64_t> dims;
  uint64_t data_bytes = 0;
};

// Encodes everything before the index: magic, file header, length of the index.
std::vector<std::byte> EncodePreamble(const Preamble& preamble);

void EncodeIndexEntry(const TensorFields& tensor, bool tagged,
                      uint64_t header_offset, uint64_t data_offset,
                      std::vector<std::byte>* out);
size_t IndexEntryBytes(const TensorFields& tensor, bool tagged);

struct HeaderFields {
  uint16_t module_index = 0;
  bool has_crc32 = true;
  // With its length; empty if there is none.
  std::vector<std::byte> crypt_block;
  uint64_t padding = 0;
};
// Returns the size of the header.
size_t HeaderBytes(const TensorFields& tensor, const HeaderFields& fields);

// An EncodedHeader is a tensor header with its hashes still zero.
class EncodedHeader {
 public:
  EncodedHeader(const TensorFields& tensor, const HeaderFields& fields);

  // Returns the bytes that the hashes cover before the data. Requires: the rule
  // is not kEither.
  std::vector<std::byte> Covered(HashRule rule) const;
  void SetHashes(uint32_t crc32, const Sha256Value& sha256);
  // Replaces the crypt block. Requires: `block` has the length of the previous
  // one.
  void SetCryptBlock(std::span<const std::byte> block);
  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
  size_t hash_block_at_ = 0;
  size_t crc32_at_ = 0;  // 0 if there is none.
  size_t sha256_at_ = 0;
  size_t crypt_at_ = 0;
  size_t crypt_end_ = 0;
};

}  // namespace haulway::tensorizer
