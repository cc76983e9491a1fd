#ifdef __x86_64__

#include <immintrin.h>

#include "base/sha256_kernels.h"
#include "base/sha256_vector.h"

namespace haulway {

namespace {

// Sixteen words, one of each message.
struct Words {
  static constexpr size_t kLanes = 16;

  static Words Load(const uint32_t* words) {
    return {_mm512_loadu_si512(words)};
  }
  static Words All(uint32_t word) {
    return {_mm512_set1_epi32(static_cast<int>(word))};
  }
  void Store(uint32_t* words) const { _mm512_storeu_si512(words, bits); }

  friend Words operator+(Words a, Words b) {
    return {_mm512_add_epi32(a.bits, b.bits)};
  }
  static Words Xor(__m512i a, __m512i b, __m512i c) {
    return {_mm512_ternarylogic_epi32(a, b, c, 0x96)};
  }
  static Words Choose(Words e, Words f, Words g) {
    return {_mm512_ternarylogic_epi32(e.bits, f.bits, g.bits, 0xCA)};
  }
  static Words Majority(Words a, Words b, Words c) {
    return {_mm512_ternarylogic_epi32(a.bits, b.bits, c.bits, 0xE8)};
  }
  static Words Sigma0(Words x) {
    return Xor(_mm512_ror_epi32(x.bits, 2), _mm512_ror_epi32(x.bits, 13),
               _mm512_ror_epi32(x.bits, 22));
  }
  static Words Sigma1(Words x) {
    return Xor(_mm512_ror_epi32(x.bits, 6), _mm512_ror_epi32(x.bits, 11),
               _mm512_ror_epi32(x.bits, 25));
  }
  static Words Gamma0(Words x) {
    return Xor(_mm512_ror_epi32(x.bits, 7), _mm512_ror_epi32(x.bits, 18),
               _mm512_srli_epi32(x.bits, 3));
  }
  static Words Gamma1(Words x) {
    return Xor(_mm512_ror_epi32(x.bits, 17), _mm512_ror_epi32(x.bits, 19),
               _mm512_srli_epi32(x.bits, 10));
  }

  // Sets words[w] to word w of the block at `offset` of each message:
  // transposes the blocks and converts from big-endian.
  static void LoadBlocks(const std::byte* const* messages, size_t offset,
                         Words words[16]) {
    __m512i r[16];
    __m512i t[16];
    for (int i = 0; i < 16; ++i) {
      r[i] = _mm512_loadu_si512(messages[i] + offset);
    }
    for (int i = 0; i < 16; i += 2) {
      t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
      t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) {
      r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
      r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
      r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
      r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
    const __m512i swap = _mm512_broadcast_i32x4(
        _mm_set_epi8(12, 13, 14, 15, 8, 9, 10, 11, 4, 5, 6, 7, 0, 1, 2, 3));
    // r[4 * m + j] holds words j, 4 + j, 8 + j and 12 + j of four messages.
    for (int j = 0; j < 4; ++j) {
      const __m512i a = _mm512_shuffle_i32x4(r[j], r[4 + j], 0x88);
      const __m512i b = _mm512_shuffle_i32x4(r[j], r[4 + j], 0xDD);
      const __m512i c = _mm512_shuffle_i32x4(r[8 + j], r[12 + j], 0x88);
      const __m512i d = _mm512_shuffle_i32x4(r[8 + j], r[12 + j], 0xDD);
      t[j] = _mm512_shuffle_i32x4(a, c, 0x88);
      t[8 + j] = _mm512_shuffle_i32x4(a, c, 0xDD);
      t[4 + j] = _mm512_shuffle_i32x4(b, d, 0x88);
      t[12 + j] = _mm512_shuffle_i32x4(b, d, 0xDD);
    }
    for (int i = 0; i < 16; ++i) words[i] = {_mm512_shuffle_epi8(t[i], swap)};
  }

  __m512i bits;
};

}  // namespace

void CompressSha256Avx512(uint32_t* states, const std::byte* const* messages,
                          size_t blocks) {
  CompressSha256<Words>(states, messages, blocks);
}

void CompressSha256Avx512Twice(uint32_t* states,
                               const std::byte* const* messages,
                               size_t blocks) {
  CompressSha256<Twice<Words>>(states, messages, blocks);
}

}  // namespace haulway

#endif
