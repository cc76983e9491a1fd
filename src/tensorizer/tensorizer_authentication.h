// Haulway's extension of encrypted files: a record behind the end mark, where
// other readers do not look. Without the key, nobody can change names, types,
// shapes, order or headers unnoticed (docs/formats/tensorizer.md). A codec:
// bytes to facts and back, no I/O.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "haulway/options.h"
#include "haulway/status.h"
#include "tensorizer/tensorizer_crypt_block.h"

namespace haulway::tensorizer {

inline constexpr size_t kHeaderTagBytes = 16;
using HeaderTag = std::array<std::byte, kHeaderTagBytes>;

// Derives the key of all tags from the key of the file.
Secret MetadataKey(const Secret& file_key);

// Returns the tag of tensor `row`'s whole header, as the header is stored.
HeaderTag TagHeader(const Secret& metadata_key, uint64_t row,
                    std::span<const std::byte> header);

// Returns a random nonce with a mark that proves, to holders of the key, that
// the file has a record. Without the mark, the record could be cut off
// unnoticed.
Nonce MarkedNonce(const Secret& metadata_key);
bool IsMarked(const Secret& metadata_key, const Nonce& nonce);

struct AuthenticationRecord {
  std::optional<KeyDerivation> derivation;
  // Views of the parsed bytes.
  std::span<const std::byte> start;  // The bytes up to the index tag.
  std::span<const std::byte> index_tag;
  std::span<const std::byte> header_tags;  // In tensor order.
};

// Returns the maximum length of a record.
uint64_t LongestAuthentication(uint64_t tensors);
uint64_t AuthenticationBytes(bool has_derivation, uint64_t tensors);

// Encodes the record. `head` is the file up to the first header.
std::vector<std::byte> EncodeAuthentication(
    const Secret& metadata_key, const std::optional<KeyDerivation>& derivation,
    std::span<const std::byte> head, std::span<const HeaderTag> header_tags);

// Parses the bytes after the end mark. Returns nullopt if they do not start
// with a record. Fails with kTruncated or kCorrupt if the record is not
// complete, and with kLimit as ParseCryptBlock() does.
Result<std::optional<AuthenticationRecord>> ParseAuthentication(
    std::span<const std::byte> bytes, uint64_t tensors,
    const ParseLimits& limits);

// Fails with kAuth unless the record matches the key and `head`.
Status CheckIndexTag(const Secret& metadata_key,
                     const AuthenticationRecord& record,
                     std::span<const std::byte> head);
// Fails with kAuth unless the record has the tag of this header.
Status CheckHeaderTag(const Secret& metadata_key,
                      const AuthenticationRecord& record, uint64_t row,
                      std::span<const std::byte> header);

}  // namespace haulway::tensorizer
