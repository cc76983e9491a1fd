// The compression function of SHA-256 (FIPS 180-4, 6.2.2) with vector
// instructions. Each kernel is compiled with extra instruction sets. It may
// include nothing else: inline functions compiled that way would be shared with
// the rest of the program.

#pragma once

#include <cstddef>
#include <cstdint>

namespace haulway {

void CompressSha256Avx512(uint32_t* states, const std::byte* const* messages,
                          size_t blocks);
// Compresses 32 messages.
void CompressSha256Avx512Twice(uint32_t* states,
                               const std::byte* const* messages, size_t blocks);
// Compresses 2 messages with the processor's SHA instructions.
void CompressSha256Sha(uint32_t* states, const std::byte* const* messages,
                       size_t blocks);
void CompressSha256Avx2(uint32_t* states, const std::byte* const* messages,
                        size_t blocks);

}  // namespace haulway
