// Design: elements are converted in blocks of 512 through float32 values in the
// L1 cache, so n types need n conversions each way instead of n * n. Integers
// are converted to other integers and to float64 directly, because float32
// would lose bits. Half precision, bfloat16 and two one-byte types use vectors
// of the processor if it has them; the other one-byte types use a table of 256.
// Rounding is to nearest even, and NaNs are those of PyTorch.
//
// Alternative not taken: a loop for every pair of types. That is many times the
// code for little speed, because reading memory takes most of the time.
// CanCast() refuses a cast to a type that cannot hold every value; nothing is
// rounded silently.

#include "tensor/cast.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>

#include "tensor/small_floats.h"

namespace haulway {

namespace {

// Number of elements whose intermediate values fit the L1 cache.
constexpr size_t kBlock = 512;

template <class T>
T Get(const std::byte* in, size_t i) {
  T value;
  std::memcpy(&value, in + i * sizeof(T), sizeof(T));
  return value;
}

template <class T>
void Put(std::byte* out, size_t i, T value) {
  std::memcpy(out + i * sizeof(T), &value, sizeof(T));
}

// Asked once: in a virtual machine, this took 7.6 us.
bool HasHalfVectors() {
#if defined(__x86_64__)
  static const bool has = [] {
    // Clang 16 has no name for F16C; CPUID leaf 1 has the bit.
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
    return __builtin_cpu_supports("avx2") != 0 &&
           __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
  }();
  return has;
#else
  return false;
#endif
}

#if defined(__x86_64__)
__attribute__((target("avx2,f16c"))) size_t LoadHalfVectors(const std::byte* in,
                                                            uint32_t* out,
                                                            size_t count) {
  size_t i = 0;
  for (; i + 8 <= count; i += 8) {
    __m128i half;
    std::memcpy(&half, in + 2 * i, sizeof(half));
    const __m256i bits = _mm256_castps_si256(_mm256_cvtph_ps(half));
    std::memcpy(out + i, &bits, sizeof(bits));
  }
  return i;
}

__attribute__((target("avx2,f16c"))) size_t StoreHalfVectors(const uint32_t* in,
                                                             std::byte* out,
                                                             size_t count) {
  size_t i = 0;
  for (; i + 8 <= count; i += 8) {
    __m256 floats;
    std::memcpy(&floats, in + i, sizeof(floats));
    const __m128i half = _mm256_cvtps_ph(floats, _MM_FROUND_TO_NEAREST_INT);
    std::memcpy(out + 2 * i, &half, sizeof(half));
  }
  return i;
}
__attribute__((target("avx2,f16c"))) size_t LoadE4M3Vectors(const std::byte* in,
                                                            uint32_t* out,
                                                            size_t count) {
  size_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m128i codes = _mm_cvtepu8_epi16(
        _mm_loadl_epi64(reinterpret_cast<const __m128i*>(in + i)));
    const __m128i rest = _mm_and_si128(codes, _mm_set1_epi16(0x7F));
    const __m128i sign = _mm_slli_epi16(_mm_xor_si128(codes, rest), 8);
    // As half precision, whose exponents are 8 less.
    const __m128i half = _mm_or_si128(sign, _mm_slli_epi16(rest, 7));
    const __m256 floats =
        _mm256_mul_ps(_mm256_cvtph_ps(half), _mm256_set1_ps(256));
    const __m256i is_nan =
        _mm256_cvtepi16_epi32(_mm_cmpeq_epi16(rest, _mm_set1_epi16(0x7F)));
    const __m256i bits = _mm256_or_si256(
        _mm256_castps_si256(floats),
        _mm256_and_si256(is_nan, _mm256_set1_epi32(0x7FF00000)));
    std::memcpy(out + i, &bits, sizeof(bits));
  }
  return i;
}

__attribute__((target("avx2,f16c"))) size_t LoadE5M2Vectors(const std::byte* in,
                                                            uint32_t* out,
                                                            size_t count) {
  size_t i = 0;
  for (; i + 8 <= count; i += 8) {
    // The upper half of half precision.
    const __m128i half = _mm_slli_epi16(
        _mm_cvtepu8_epi16(
            _mm_loadl_epi64(reinterpret_cast<const __m128i*>(in + i))),
        8);
    const __m256i bits = _mm256_castps_si256(_mm256_cvtph_ps(half));
    std::memcpy(out + i, &bits, sizeof(bits));
  }
  return i;
}

// Rounds 8 floats; each is in the lower half of its 32 bits.
__attribute__((target("avx2"))) inline __m256i RoundToBfloats(
    const uint32_t* in, uint16_t nan) {
  const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(in));
  const __m256i odd =
      _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i sum =
      _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF)));
  const __m256i is_nan =
      _mm256_cmpgt_epi32(_mm256_and_si256(bits, _mm256_set1_epi32(0x7FFFFFFF)),
                         _mm256_set1_epi32(static_cast<int>(kFloatInfinity)));
  return _mm256_blendv_epi8(_mm256_srli_epi32(sum, 16), _mm256_set1_epi32(nan),
                            is_nan);
}

__attribute__((target("avx2"))) size_t StoreBfloatVectors(const uint32_t* in,
                                                          uint16_t nan,
                                                          std::byte* out,
                                                          size_t count) {
  size_t i = 0;
  for (; i + 16 <= count; i += 16) {
    const __m256i mixed = _mm256_packus_epi32(RoundToBfloats(in + i, nan),
                                              RoundToBfloats(in + i + 8, nan));
    // Packing leaves the quarters in the order 0, 2, 1, 3.
    const __m256i ordered = _mm256_permute4x64_epi64(mixed, 0b11011000);
    std::memcpy(out + 2 * i, &ordered, sizeof(ordered));
  }
  return i;
}
#else
size_t LoadHalfVectors(const std::byte*, uint32_t*, size_t) { return 0; }
size_t StoreHalfVectors(const uint32_t*, std::byte*, size_t) { return 0; }
size_t LoadE4M3Vectors(const std::byte*, uint32_t*, size_t) { return 0; }
size_t LoadE5M2Vectors(const std::byte*, uint32_t*, size_t) { return 0; }
size_t StoreBfloatVectors(const uint32_t*, uint16_t, std::byte*, size_t) {
  return 0;
}
#endif

void LoadDecoded(const std::array<uint32_t, 256>& table, const std::byte* in,
                 uint32_t* out, size_t count) {
  for (size_t i = 0; i < count; ++i) out[i] = table[Get<uint8_t>(in, i)];
}

// Converts up to kBlock elements to float32 bits.
void LoadFloats(DType from, const std::byte* in, uint32_t* out, size_t count) {
  static constexpr auto kFromE4M3 = DecodeTable<F8ToFloat<kE4M3>>();
  static constexpr auto kFromE5M2 = DecodeTable<F8ToFloat<kE5M2>>();
  static constexpr auto kFromE4M3FNUZ = DecodeTable<F8ToFloat<kE4M3FNUZ>>();
  static constexpr auto kFromE5M2FNUZ = DecodeTable<F8ToFloat<kE5M2FNUZ>>();
  static constexpr auto kFromE8M0 = DecodeTable<E8M0ToFloat>();
  switch (from) {
    case DType::kF64:
      for (size_t i = 0; i < count; ++i) {
        out[i] = BitsOf(static_cast<float>(Get<double>(in, i)));
      }
      return;
    case DType::kF16: {
      size_t i = HasHalfVectors() ? LoadHalfVectors(in, out, count) : 0;
      for (; i < count; ++i) out[i] = HalfToFloat(Get<uint16_t>(in, i));
      return;
    }
    case DType::kBF16:
      for (size_t i = 0; i < count; ++i) {
        out[i] = static_cast<uint32_t>(Get<uint16_t>(in, i)) << 16;
      }
      return;
    case DType::kF8E4M3: {
      const size_t i = HasHalfVectors() ? LoadE4M3Vectors(in, out, count) : 0;
      return LoadDecoded(kFromE4M3, in + i, out + i, count - i);
    }
    case DType::kF8E5M2: {
      const size_t i = HasHalfVectors() ? LoadE5M2Vectors(in, out, count) : 0;
      return LoadDecoded(kFromE5M2, in + i, out + i, count - i);
    }
    case DType::kF8E4M3FNUZ:
      return LoadDecoded(kFromE4M3FNUZ, in, out, count);
    case DType::kF8E5M2FNUZ:
      return LoadDecoded(kFromE5M2FNUZ, in, out, count);
    case DType::kF8E8M0:
      return LoadDecoded(kFromE8M0, in, out, count);
    default:
      std::memcpy(out, in, count * sizeof(uint32_t));
  }
}

template <uint8_t (*kEncode)(uint32_t)>
void StoreEncoded(const uint32_t* in, std::byte* out, size_t count) {
  for (size_t i = 0; i < count; ++i) Put(out, i, kEncode(in[i]));
}

// Converts float32 bits to `to`. `bfloat_nan`: the bits that a NaN gets as
// bfloat16.
void StoreFloats(const uint32_t* in, DType to, uint16_t bfloat_nan,
                 std::byte* out, size_t count) {
  switch (to) {
    case DType::kF64:
      for (size_t i = 0; i < count; ++i) {
        Put(out, i, static_cast<double>(FloatOf(in[i])));
      }
      return;
    case DType::kF16: {
      size_t i = HasHalfVectors() ? StoreHalfVectors(in, out, count) : 0;
      for (; i < count; ++i) Put(out, i, FloatToHalf(in[i]));
      return;
    }
    case DType::kBF16: {
      size_t i =
          HasHalfVectors() ? StoreBfloatVectors(in, bfloat_nan, out, count) : 0;
      for (; i < count; ++i) Put(out, i, FloatToBfloat(in[i], bfloat_nan));
      return;
    }
    case DType::kF8E4M3:
      return StoreEncoded<FloatToF8<kE4M3>>(in, out, count);
    case DType::kF8E5M2:
      return StoreEncoded<FloatToF8<kE5M2>>(in, out, count);
    case DType::kF8E4M3FNUZ:
      return StoreEncoded<FloatToF8<kE4M3FNUZ>>(in, out, count);
    case DType::kF8E5M2FNUZ:
      return StoreEncoded<FloatToF8<kE5M2FNUZ>>(in, out, count);
    case DType::kF8E8M0:
      return StoreEncoded<FloatToE8M0>(in, out, count);
    default:
      std::memcpy(out, in, count * sizeof(uint32_t));
  }
}

template <class T>
void LoadAs(const std::byte* in, int64_t* out, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    out[i] = static_cast<int64_t>(Get<T>(in, i));
  }
}

// Requires: `from` is boolean, or an integer type of up to 4 bytes.
void LoadIntegers(DType from, const std::byte* in, int64_t* out, size_t count) {
  switch (from) {
    case DType::kBool:
      for (size_t i = 0; i < count; ++i) out[i] = Get<uint8_t>(in, i) != 0;
      return;
    case DType::kU8:
      return LoadAs<uint8_t>(in, out, count);
    case DType::kI8:
      return LoadAs<int8_t>(in, out, count);
    case DType::kU16:
      return LoadAs<uint16_t>(in, out, count);
    case DType::kI16:
      return LoadAs<int16_t>(in, out, count);
    case DType::kU32:
      return LoadAs<uint32_t>(in, out, count);
    default:
      return LoadAs<int32_t>(in, out, count);
  }
}

template <class T>
void StoreAs(const int64_t* in, std::byte* out, size_t count) {
  for (size_t i = 0; i < count; ++i) Put(out, i, static_cast<T>(in[i]));
}

// Requires: every value fits.
void StoreIntegers(const int64_t* in, DType to, std::byte* out, size_t count) {
  switch (ItemBytes(to)) {
    case 1:
      return StoreAs<uint8_t>(in, out, count);
    case 2:
      return StoreAs<uint16_t>(in, out, count);
    case 4:
      return StoreAs<uint32_t>(in, out, count);
    default:
      return StoreAs<uint64_t>(in, out, count);
  }
}

// The number of bits in which a type represents integers exactly; nullopt for
// types other than real numbers.
struct Precision {
  int bits;
  bool is_float;
  bool is_signed;
};
std::optional<Precision> PrecisionOf(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return Precision{53, true, true};
    case DType::kF32:
      return Precision{24, true, true};
    case DType::kF16:
      return Precision{11, true, true};
    case DType::kBF16:
      return Precision{8, true, true};
    case DType::kF8E4M3:
    case DType::kF8E5M2:
    case DType::kF8E4M3FNUZ:
    case DType::kF8E5M2FNUZ:
    case DType::kF8E8M0:
      return Precision{0, true, true};
    case DType::kI64:
      return Precision{63, false, true};
    case DType::kI32:
      return Precision{31, false, true};
    case DType::kI16:
      return Precision{15, false, true};
    case DType::kI8:
      return Precision{7, false, true};
    case DType::kU64:
      return Precision{64, false, false};
    case DType::kU32:
      return Precision{32, false, false};
    case DType::kU16:
      return Precision{16, false, false};
    case DType::kU8:
      return Precision{8, false, false};
    case DType::kBool:
      return Precision{1, false, false};
    default:
      return std::nullopt;
  }
}

// Returns the type of the two parts of a complex dtype.
std::optional<DType> PartOf(DType dtype) {
  switch (dtype) {
    case DType::kC32:
      return DType::kF16;
    case DType::kC64:
      return DType::kF32;
    case DType::kC128:
      return DType::kF64;
    default:
      return std::nullopt;
  }
}

}  // namespace

bool CanCast(DType from, DType to) {
  if (from == to) return true;
  if (PartOf(from).has_value()) return PartOf(to).has_value();
  const auto source = PrecisionOf(from);
  const auto target = PrecisionOf(to);
  if (!source.has_value() || !target.has_value()) return false;
  if (source->is_float) return target->is_float;
  if (to == DType::kBool) return false;
  return target->bits >= source->bits &&
         (target->is_signed || !source->is_signed);
}

void CastElements(const std::byte* in, DType from, std::byte* out, DType to,
                  uint64_t count) {
  if (count == 0) return;
  if (from == to) {
    std::memcpy(out, in, count * ItemBytes(from));
    return;
  }
  if (const auto part = PartOf(from); part.has_value()) {
    return CastElements(in, *part, out, *PartOf(to), 2 * count);
  }
  const bool is_float = PrecisionOf(from)->is_float;
  const bool to_float = PrecisionOf(to)->is_float;
  const uint16_t bfloat_nan =
      from == DType::kF32 || from == DType::kF64 ? 0xFFFF : 0x7FC0;
  std::array<uint32_t, kBlock> floats;
  std::array<int64_t, kBlock> integers;
  for (uint64_t done = 0; done < count; done += kBlock) {
    const size_t size = std::min<uint64_t>(kBlock, count - done);
    const std::byte* source = in + done * ItemBytes(from);
    std::byte* target = out + done * ItemBytes(to);
    if (is_float) {
      LoadFloats(from, source, floats.data(), size);
      StoreFloats(floats.data(), to, bfloat_nan, target, size);
      continue;
    }
    LoadIntegers(from, source, integers.data(), size);
    if (!to_float) {
      StoreIntegers(integers.data(), to, target, size);
    } else if (to == DType::kF64) {
      for (size_t i = 0; i < size; ++i) {
        Put(target, i, static_cast<double>(integers[i]));
      }
    } else {
      for (size_t i = 0; i < size; ++i) {
        floats[i] = BitsOf(static_cast<float>(integers[i]));
      }
      StoreFloats(floats.data(), to, bfloat_nan, target, size);
    }
  }
}

}  // namespace haulway
