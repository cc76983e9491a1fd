// Compresses chunks of BLAKE3 in the lanes of vectors, which the compiler maps
// to the registers that the including file may use. All functions are inline in
// their callers, so that none is shared by files for different processors.

#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace haulway::delta::blake3 {

inline constexpr size_t kHashedChunk = 1024;
inline constexpr size_t kHashedBlock = 64;

enum Flag : uint32_t {
  kChunkStart = 1,
  kChunkEnd = 2,
  kParent = 4,
  kRoot = 8,
};

inline constexpr std::array<uint32_t, 8> kStart = {
    0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A,
    0x510E527F, 0x9B05688C, 0x1F83D9AB, 0x5BE0CD19};

// The order of message words after each round.
inline constexpr std::array<uint8_t, 16> kOrder = {2, 6,  3,  10, 7, 0,  4,  13,
                                                   1, 11, 12, 5,  9, 14, 15, 8};

template <class Word>
[[gnu::always_inline]] inline Word Rotated(Word word, int bits) {
  return (word >> bits) | (word << (32 - bits));
}

template <class Word>
[[gnu::always_inline]] inline void Mix(Word* s, int a, int b, int c, int d,
                                       Word x, Word y) {
  s[a] = s[a] + s[b] + x;
  s[d] = Rotated<Word>(s[d] ^ s[a], 16);
  s[c] = s[c] + s[d];
  s[b] = Rotated<Word>(s[b] ^ s[c], 12);
  s[a] = s[a] + s[b] + y;
  s[d] = Rotated<Word>(s[d] ^ s[a], 8);
  s[c] = s[c] + s[d];
  s[b] = Rotated<Word>(s[b] ^ s[c], 7);
}

// Replaces the chaining value in `chain` by that after one block.
template <class Word>
[[gnu::always_inline]] inline void Compress(Word* chain, const Word* block,
                                            Word counter_low, Word counter_high,
                                            uint32_t length, uint32_t flags) {
  Word s[16];
  for (int i = 0; i < 8; ++i) s[i] = chain[i];
  const Word zero = counter_low ^ counter_low;
  for (int i = 0; i < 4; ++i) s[8 + i] = zero + kStart[i];
  s[12] = counter_low;
  s[13] = counter_high;
  s[14] = zero + length;
  s[15] = zero + flags;
  Word m[16];
  for (int i = 0; i < 16; ++i) m[i] = block[i];
  for (int round = 0; round < 7; ++round) {
    Mix<Word>(s, 0, 4, 8, 12, m[0], m[1]);
    Mix<Word>(s, 1, 5, 9, 13, m[2], m[3]);
    Mix<Word>(s, 2, 6, 10, 14, m[4], m[5]);
    Mix<Word>(s, 3, 7, 11, 15, m[6], m[7]);
    Mix<Word>(s, 0, 5, 10, 15, m[8], m[9]);
    Mix<Word>(s, 1, 6, 11, 12, m[10], m[11]);
    Mix<Word>(s, 2, 7, 8, 13, m[12], m[13]);
    Mix<Word>(s, 3, 4, 9, 14, m[14], m[15]);
    Word next[16];
    for (int i = 0; i < 16; ++i) next[i] = m[kOrder[i]];
    for (int i = 0; i < 16; ++i) m[i] = next[i];
  }
  for (int i = 0; i < 8; ++i) chain[i] = s[i] ^ s[i + 8];
}

// Reads a little-endian word.
[[gnu::always_inline]] inline uint32_t WordAt(const std::byte* bytes) {
  uint32_t word;
  std::memcpy(&word, bytes, sizeof(word));
  if constexpr (std::endian::native == std::endian::big) {
    word = __builtin_bswap32(word);
  }
  return word;
}

template <size_t kLanes>
struct LanesOf {
  typedef uint32_t Type __attribute__((vector_size(kLanes * 4)));
};

// Computes the chaining values of `kLanes` whole chunks that follow one another
// and begin with chunk `counter`.
template <size_t kLanes>
[[gnu::always_inline]] inline void HashLanes(const std::byte* chunks,
                                             uint64_t counter,
                                             std::array<uint32_t, 8>* out) {
  using Lanes = typename LanesOf<kLanes>::Type;
  Lanes low;
  Lanes high;
  for (size_t lane = 0; lane < kLanes; ++lane) {
    low[lane] = static_cast<uint32_t>(counter + lane);
    high[lane] = static_cast<uint32_t>((counter + lane) >> 32);
  }
  Lanes chain[8];
  for (int i = 0; i < 8; ++i) chain[i] = (low ^ low) + kStart[i];
  constexpr size_t kBlocks = kHashedChunk / kHashedBlock;
  for (size_t b = 0; b < kBlocks; ++b) {
    Lanes block[16];
    for (int word = 0; word < 16; ++word) {
      for (size_t lane = 0; lane < kLanes; ++lane) {
        block[word][lane] =
            WordAt(chunks + lane * kHashedChunk + b * kHashedBlock + word * 4);
      }
    }
    const uint32_t flags = (b == 0 ? uint32_t{kChunkStart} : 0) |
                           (b == kBlocks - 1 ? uint32_t{kChunkEnd} : 0);
    Compress<Lanes>(chain, block, low, high, kHashedBlock, flags);
  }
  for (size_t lane = 0; lane < kLanes; ++lane) {
    for (int i = 0; i < 8; ++i) out[lane][i] = chain[i][lane];
  }
}

inline constexpr size_t kMostLanes = 8;
#if defined(__x86_64__)
// HashLanes() for processors with AVX2.
void HashLanesAvx2(const std::byte* chunks, uint64_t counter,
                   std::array<uint32_t, 8>* out);
#endif

}  // namespace haulway::delta::blake3
