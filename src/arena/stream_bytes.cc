#include "arena/stream_bytes.h"

#include <cstdint>
#include <cstring>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace haulway::arena {

#ifdef __SSE2__

namespace {

constexpr size_t kLine = 64;

}  // namespace

void StreamBytes(std::span<std::byte> to, std::span<const std::byte> from) {
  std::byte* out = to.data();
  const std::byte* in = from.data();
  size_t left = from.size();
  const size_t before =
      (kLine - reinterpret_cast<uintptr_t>(out) % kLine) % kLine;
  if (left < before + kLine) {
    if (left != 0) std::memcpy(out, in, left);
    return;
  }
  std::memcpy(out, in, before);
  out += before;
  in += before;
  left -= before;
  // Whole cache lines: a partly written line would be read first.
  for (; left >= kLine; left -= kLine, out += kLine, in += kLine) {
    const auto* words = reinterpret_cast<const __m128i*>(in);
    auto* line = reinterpret_cast<__m128i*>(out);
    const __m128i first = _mm_loadu_si128(words);
    const __m128i second = _mm_loadu_si128(words + 1);
    const __m128i third = _mm_loadu_si128(words + 2);
    const __m128i fourth = _mm_loadu_si128(words + 3);
    _mm_stream_si128(line, first);
    _mm_stream_si128(line + 1, second);
    _mm_stream_si128(line + 2, third);
    _mm_stream_si128(line + 3, fourth);
  }
  // Non-temporal stores are not ordered with later stores.
  _mm_sfence();
  if (left != 0) std::memcpy(out, in, left);
}

#else

void StreamBytes(std::span<std::byte> to, std::span<const std::byte> from) {
  if (!from.empty()) std::memcpy(to.data(), from.data(), from.size());
}

#endif

}  // namespace haulway::arena
