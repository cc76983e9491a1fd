// The compression function of SHA-256 (FIPS 180-4, 6.2.2) over vectors. Each
// kernel is built for its own instructions; nothing else may be included by
// what is, since functions that are inline would be shared with the rest of
// the program.

#pragma once

#include <cstddef>
#include <cstdint>

namespace haulway {

void CompressSha256Avx512(uint32_t* states, const std::byte* const* messages,
                          size_t blocks);
// Compresses 32 messages.
void CompressSha256Avx512Twice(uint32_t* states,
                               const std::byte* const* messages, size_t blocks);
// Compresses 2 messages with the processor's instructions for SHA-256.
void CompressSha256Sha(uint32_t* states, const std::byte* const* messages,
                       size_t blocks);
void CompressSha256Avx2(uint32_t* states, const std::byte* const* messages,
                        size_t blocks);

}  // namespace haulway
