// Design: elements are converted in blocks of 512 through float32 values in the
// L1 cache, so n types need n conversions each way instead of n * n. Integers
// are converted to other integers and to float64 directly, because float32
// would lose bits. Half precision uses instructions of the processor if
// available, one-byte types a table of 256. Rounding is to nearest even, and
// NaNs are those of PyTorch.
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

bool HasHalfVectors() {
#if defined(__x86_64__)
  // Clang 16 has no name for F16C; CPUID leaf 1 has the bit.
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __builtin_cpu_supports("avx2") != 0 &&
         __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
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
#else
size_t LoadHalfVectors(const std::byte*, uint32_t*, size_t) { return 0; }
size_t StoreHalfVectors(const uint32_t*, std::byte*, size_t) { return 0; }
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
    case DType::kF8E4M3:
      return LoadDecoded(kFromE4M3, in, out, count);
    case DType::kF8E5M2:
      return LoadDecoded(kFromE5M2, in, out, count);
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
    case DType::kBF16:
      for (size_t i = 0; i < count; ++i) {
        Put(out, i, FloatToBfloat(in[i], bfloat_nan));
      }
      return;
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
