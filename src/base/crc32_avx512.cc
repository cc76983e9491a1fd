#ifdef __x86_64__

#include <immintrin.h>

#include "base/crc32_fold.h"

namespace haulway {

namespace {

__m512i Fold(__m512i bytes, __m512i fold, __m512i next) {
  return _mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128(bytes, fold, 0x00),
                                   _mm512_clmulepi64_epi128(bytes, fold, 0x11),
                                   next, 0x96);
}

}  // namespace

void FoldCrc32Avx512(const Crc32Folds& folds, uint32_t state,
                     const std::byte* bytes, size_t blocks, std::byte* folded) {
  __m512i run[4];
  for (int i = 0; i < 4; ++i) run[i] = _mm512_loadu_si512(bytes + i * 64);
  const uint64_t first[8] = {state};
  run[0] = _mm512_xor_si512(run[0], _mm512_loadu_si512(first));
  const __m512i by_2048 = _mm512_loadu_si512(folds.by_2048.data());
  for (size_t block = 1; block < blocks; ++block) {
    bytes += kCrc32FoldBytes;
    for (int i = 0; i < 4; ++i) {
      run[i] = Fold(run[i], by_2048, _mm512_loadu_si512(bytes + i * 64));
    }
  }
  const __m512i by_512 = _mm512_loadu_si512(folds.by_512.data());
  for (int i = 1; i < 4; ++i) run[i] = Fold(run[i - 1], by_512, run[i]);
  __m128i lanes[4];
  _mm512_storeu_si512(lanes, run[3]);
  const __m128i by_128 =
      _mm_loadu_si128(reinterpret_cast<const __m128i*>(folds.by_128.data()));
  for (int i = 1; i < 4; ++i) {
    lanes[i] ^= _mm_clmulepi64_si128(lanes[i - 1], by_128, 0x00) ^
                _mm_clmulepi64_si128(lanes[i - 1], by_128, 0x11);
  }
  _mm_storeu_si128(reinterpret_cast<__m128i*>(folded), lanes[3]);
}

}  // namespace haulway

#endif
