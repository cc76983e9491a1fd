// Our extension of encrypted files: a record behind the end mark, where other
// readers do not look, that lets nobody without the key change names, types,
// shapes, order or headers (docs/formats/tensorizer.md). A codec: bytes to
// facts and back, no I/O.

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

// The key of all tags, made from that of the file.
Secret MetadataKey(const Secret& file_key);

// Returns the tag of tensor `row`'s whole header, as the header is stored.
HeaderTag TagHeader(const Secret& metadata_key, uint64_t row,
                    std::span<const std::byte> header);

// A nonce that tells whoever has the key that the file has a record: without
// it, the record could be cut off unseen.
Nonce MarkedNonce(const Secret& metadata_key);
bool IsMarked(const Secret& metadata_key, const Nonce& nonce);

struct AuthenticationRecord {
  std::optional<KeyDerivation> derivation;
  // In place in the bytes that were parsed.
  std::span<const std::byte> start;  // Up to the index tag.
  std::span<const std::byte> index_tag;
  std::span<const std::byte> header_tags;  // In the order of the tensors.
};

// How long a record is at most.
uint64_t LongestAuthentication(uint64_t tensors);
uint64_t AuthenticationBytes(bool has_derivation, uint64_t tensors);

// `head` is the file up to the first header.
std::vector<std::byte> EncodeAuthentication(
    const Secret& metadata_key, const std::optional<KeyDerivation>& derivation,
    std::span<const std::byte> head, std::span<const HeaderTag> header_tags);

// Nothing if `bytes`, what follows the end mark, starts with no record. Fails
// with kTruncated or kCorrupt if it is not whole, and kLimit as
// ParseCryptBlock() does.
Result<std::optional<AuthenticationRecord>> ParseAuthentication(
    std::span<const std::byte> bytes, uint64_t tensors,
    const ParseLimits& limits);

// kAuth unless the record is of this key and `head`.
Status CheckIndexTag(const Secret& metadata_key,
                     const AuthenticationRecord& record,
                     std::span<const std::byte> head);
// kAuth unless it is the tag of that header.
Status CheckHeaderTag(const Secret& metadata_key,
                      const AuthenticationRecord& record, uint64_t row,
                      std::span<const std::byte> header);

}  // namespace haulway::tensorizer
