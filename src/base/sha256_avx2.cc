#ifdef __x86_64__

#include <immintrin.h>

#include "base/sha256_kernels.h"
#include "base/sha256_vector.h"

namespace haulway {

namespace {

// Eight words, one of each message.
struct Words {
  static constexpr size_t kLanes = 8;

  static Words Load(const uint32_t* words) {
    return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(words))};
  }
  static Words All(uint32_t word) {
    return {_mm256_set1_epi32(static_cast<int>(word))};
  }
  void Store(uint32_t* words) const {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(words), bits);
  }

  friend Words operator+(Words a, Words b) {
    return {_mm256_add_epi32(a.bits, b.bits)};
  }
  static __m256i Xor(__m256i a, __m256i b) { return _mm256_xor_si256(a, b); }
  template <int kBits>
  static __m256i Rotated(Words x) {
    return _mm256_or_si256(_mm256_srli_epi32(x.bits, kBits),
                           _mm256_slli_epi32(x.bits, 32 - kBits));
  }
  static Words Choose(Words e, Words f, Words g) {
    return {Xor(g.bits, _mm256_and_si256(e.bits, Xor(f.bits, g.bits)))};
  }
  static Words Majority(Words a, Words b, Words c) {
    return {_mm256_or_si256(
        _mm256_and_si256(a.bits, b.bits),
        _mm256_and_si256(c.bits, _mm256_or_si256(a.bits, b.bits)))};
  }
  static Words Sigma0(Words x) {
    return {Xor(Xor(Rotated<2>(x), Rotated<13>(x)), Rotated<22>(x))};
  }
  static Words Sigma1(Words x) {
    return {Xor(Xor(Rotated<6>(x), Rotated<11>(x)), Rotated<25>(x))};
  }
  static Words Gamma0(Words x) {
    return {
        Xor(Xor(Rotated<7>(x), Rotated<18>(x)), _mm256_srli_epi32(x.bits, 3))};
  }
  static Words Gamma1(Words x) {
    return {Xor(Xor(Rotated<17>(x), Rotated<19>(x)),
                _mm256_srli_epi32(x.bits, 10))};
  }

  // Sets words[w] to word w of the block at `offset` of each message:
  // transposes the blocks and converts from big-endian.
  static void LoadBlocks(const std::byte* const* messages, size_t offset,
                         Words words[16]) {
    LoadHalves(messages, offset, words);
    LoadHalves(messages, offset + 32, words + 8);
  }

  __m256i bits;

 private:
  static void LoadHalves(const std::byte* const* messages, size_t offset,
                         Words words[8]) {
    __m256i r[8];
    __m256i t[8];
    for (int i = 0; i < 8; ++i) {
      r[i] = _mm256_loadu_si256(
          reinterpret_cast<const __m256i*>(messages[i] + offset));
    }
    for (int i = 0; i < 8; i += 2) {
      t[i] = _mm256_unpacklo_epi32(r[i], r[i + 1]);
      t[i + 1] = _mm256_unpackhi_epi32(r[i], r[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) {
      r[i] = _mm256_unpacklo_epi64(t[i], t[i + 2]);
      r[i + 1] = _mm256_unpackhi_epi64(t[i], t[i + 2]);
      r[i + 2] = _mm256_unpacklo_epi64(t[i + 1], t[i + 3]);
      r[i + 3] = _mm256_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
    const __m256i swap = _mm256_broadcastsi128_si256(
        _mm_set_epi8(12, 13, 14, 15, 8, 9, 10, 11, 4, 5, 6, 7, 0, 1, 2, 3));
    // r[4 * m + j] holds words j and 4 + j of four messages.
    for (int j = 0; j < 4; ++j) {
      words[j] = {_mm256_shuffle_epi8(
          _mm256_permute2x128_si256(r[j], r[4 + j], 0x20), swap)};
      words[4 + j] = {_mm256_shuffle_epi8(
          _mm256_permute2x128_si256(r[j], r[4 + j], 0x31), swap)};
    }
  }
};

}  // namespace

void CompressSha256Avx2(uint32_t* states, const std::byte* const* messages,
                        size_t blocks) {
  CompressSha256<Words>(states, messages, blocks);
}

}  // namespace haulway

#endif
