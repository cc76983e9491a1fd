// CRC-32 (IEEE 802.3, as in zip), computed in pieces that can be combined.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace haulway {

// Returns the CRC of the bytes so far, whose CRC is `crc` (0 at first),
// followed by `bytes`.
uint32_t Crc32(uint32_t crc, std::span<const std::byte> bytes);

// Returns the CRC of A followed by B, from both CRCs and the length of B.
uint32_t Crc32Join(uint32_t crc_a, uint32_t crc_b, uint64_t length_b);

}  // namespace haulway
