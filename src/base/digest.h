// CRC-32 (IEEE 802.3, as in zip), in pieces that can be joined.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace haulway {

// The CRC of the bytes seen so far (`crc`, 0 at first) followed by `bytes`.
uint32_t Crc32(uint32_t crc, std::span<const std::byte> bytes);

// The CRC of A followed by B, from the CRCs of both and the length of B.
uint32_t Crc32Join(uint32_t crc_a, uint32_t crc_b, uint64_t length_b);

}  // namespace haulway
