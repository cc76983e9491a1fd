// Design: a type is a function of one block, and a row of the table. The loops
// have fixed lengths and no branches, so the compiler makes vectors of them.
// Groups of elements that share a scale are unpacked to bytes first, and
// multiplied in a second loop. The grids of the IQ types are unpacked when the
// file is compiled.
//
// Alternative not taken: intrinsics, which would need a version for each
// processor with the same rounding. The compiler makes a version for AVX2 of
// the same functions.

#include "arithmetic/ggml_blocks.h"

#include <array>
#include <cstring>

#include "arithmetic/ggml_grids.h"
#include "tensor/cast.h"
#include "tensor/small_floats.h"

namespace haulway::arithmetic {

namespace {

constexpr int kSuper = 256;  // Elements of a block of the K and IQ types.

template <class T>
T Load(const uint8_t* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof(value));
  return value;
}

float Half(const uint8_t* bytes) {
  return FloatOf(HalfToFloat(Load<uint16_t>(bytes)));
}

// out = d * q.
template <int kCount, class Code>
void Scale(float d, const Code* q, float* out) {
  for (int i = 0; i < kCount; ++i) out[i] = d * static_cast<float>(q[i]);
}

// out = d * q + m, rounded twice.
template <int kCount>
void ScaleAdd(float d, float m, const uint8_t* q, float* out) {
  for (int i = 0; i < kCount; ++i) out[i] = d * static_cast<float>(q[i]) + m;
}

// The low nibbles of `kCount` bytes, then the high ones.
template <int kCount>
void Nibbles(const uint8_t* bytes, uint8_t* q) {
  for (int i = 0; i < kCount; ++i) q[i] = bytes[i] & 0x0F;
  for (int i = 0; i < kCount; ++i) q[kCount + i] = bytes[i] >> 4;
}

// Adds bit i of `high` to q[i] as its bit 4.
void AddFifthBits(uint32_t high, uint8_t* q) {
  for (int i = 0; i < 32; ++i) {
    q[i] = static_cast<uint8_t>(q[i] | (high >> i & 1) << 4);
  }
}

template <int kCount>
void Shift(const uint8_t* q, int by, int8_t* out) {
  for (int i = 0; i < kCount; ++i) out[i] = static_cast<int8_t>(q[i] - by);
}

void Q4_0(const uint8_t* block, float* out) {
  uint8_t q[32];
  int8_t shifted[32];
  Nibbles<16>(block + 2, q);
  Shift<32>(q, 8, shifted);
  Scale<32>(Half(block), shifted, out);
}

void Q4_1(const uint8_t* block, float* out) {
  uint8_t q[32];
  Nibbles<16>(block + 4, q);
  ScaleAdd<32>(Half(block), Half(block + 2), q, out);
}

void Q5_0(const uint8_t* block, float* out) {
  uint8_t q[32];
  int8_t shifted[32];
  Nibbles<16>(block + 6, q);
  AddFifthBits(Load<uint32_t>(block + 2), q);
  Shift<32>(q, 16, shifted);
  Scale<32>(Half(block), shifted, out);
}

void Q5_1(const uint8_t* block, float* out) {
  uint8_t q[32];
  Nibbles<16>(block + 8, q);
  AddFifthBits(Load<uint32_t>(block + 4), q);
  ScaleAdd<32>(Half(block), Half(block + 2), q, out);
}

void Q8_0(const uint8_t* block, float* out) {
  int8_t q[32];
  std::memcpy(q, block + 2, sizeof(q));
  Scale<32>(Half(block), q, out);
}

// 256 fields of two bits: of 32 bytes the lowest, then the next, and so on.
void TwoBits(const uint8_t* bytes, uint8_t* q) {
  for (int part = 0; part < 2; ++part) {
    for (int shift = 0; shift < 4; ++shift) {
      for (int i = 0; i < 32; ++i) {
        q[128 * part + 32 * shift + i] =
            bytes[32 * part + i] >> (2 * shift) & 3;
      }
    }
  }
}

void Q2K(const uint8_t* block, float* out) {
  uint8_t q[kSuper];
  TwoBits(block + 16, q);
  const float d = Half(block + 80);
  const float dmin = Half(block + 82);
  for (int i = 0; i < 16; ++i) {
    const float scale = d * static_cast<float>(block[i] & 0x0F);
    const float least = dmin * static_cast<float>(block[i] >> 4);
    ScaleAdd<16>(scale, -least, q + 16 * i, out + 16 * i);
  }
}

void Q3K(const uint8_t* block, float* out) {
  uint8_t q[kSuper];
  TwoBits(block + 32, q);
  int8_t shifted[kSuper];
  for (int bit = 0; bit < 8; ++bit) {
    for (int i = 0; i < 32; ++i) {
      // The offset is there if the bit is not.
      const int offset = (block[i] >> bit & 1) == 0 ? 4 : 0;
      shifted[32 * bit + i] = static_cast<int8_t>(q[32 * bit + i] - offset);
    }
  }
  const uint8_t* const packed = block + 96;
  const float d = Half(block + 108);
  for (int i = 0; i < 16; ++i) {
    const int low = packed[i % 8] >> (i < 8 ? 0 : 4) & 0x0F;
    const int high = packed[8 + i % 4] >> (2 * (i / 4)) & 3;
    const float scale = d * static_cast<float>((low | high << 4) - 32);
    Scale<16>(scale, shifted + 16 * i, out + 16 * i);
  }
}

// The eight scales and minima of six bits of Q4_K and Q5_K.
struct SixBits {
  std::array<uint8_t, 8> scale, least;

  explicit SixBits(const uint8_t* packed) {
    for (int i = 0; i < 4; ++i) {
      const uint8_t low = packed[i];
      const uint8_t middle = packed[4 + i];
      const uint8_t both = packed[8 + i];
      scale[i] = low & 0x3F;
      least[i] = middle & 0x3F;
      scale[4 + i] = static_cast<uint8_t>((both & 0x0F) | (low >> 2 & 0x30));
      least[4 + i] = static_cast<uint8_t>(both >> 4 | (middle >> 2 & 0x30));
    }
  }
};

void ScaleByEight(const uint8_t* block, const uint8_t* q, float* out) {
  const SixBits six(block + 4);
  const float d = Half(block);
  const float dmin = Half(block + 2);
  for (int i = 0; i < 8; ++i) {
    const float scale = d * static_cast<float>(six.scale[i]);
    const float least = dmin * static_cast<float>(six.least[i]);
    ScaleAdd<32>(scale, -least, q + 32 * i, out + 32 * i);
  }
}

void Q4K(const uint8_t* block, float* out) {
  uint8_t q[kSuper];
  for (int i = 0; i < 4; ++i) Nibbles<32>(block + 16 + 32 * i, q + 64 * i);
  ScaleByEight(block, q, out);
}

void Q5K(const uint8_t* block, float* out) {
  uint8_t q[kSuper];
  for (int i = 0; i < 4; ++i) Nibbles<32>(block + 48 + 32 * i, q + 64 * i);
  for (int bit = 0; bit < 8; ++bit) {
    for (int i = 0; i < 32; ++i) {
      uint8_t& code = q[32 * bit + i];
      code = static_cast<uint8_t>(code | (block[16 + i] >> bit & 1) << 4);
    }
  }
  ScaleByEight(block, q, out);
}

void Q6K(const uint8_t* block, float* out) {
  uint8_t q[kSuper];
  uint8_t high[kSuper];
  int8_t shifted[kSuper];
  for (int i = 0; i < 2; ++i) Nibbles<64>(block + 64 * i, q + 128 * i);
  TwoBits(block + 128, high);
  for (int i = 0; i < kSuper; ++i) {
    shifted[i] = static_cast<int8_t>((q[i] | high[i] << 4) - 32);
  }
  const float d = Half(block + 208);
  for (int i = 0; i < 16; ++i) {
    const auto scale = static_cast<int8_t>(block[192 + i]);
    Scale<16>(d * static_cast<float>(scale), shifted + 16 * i, out + 16 * i);
  }
}

// Five ternary digits in each byte, as a fraction of 256 with base 3.
template <int kBytes, int kDigits>
int8_t* Ternary(const uint8_t* bytes, int8_t* q) {
  constexpr std::array<uint8_t, 5> kPowers = {1, 3, 9, 27, 81};
  for (int digit = 0; digit < kDigits; ++digit) {
    for (int i = 0; i < kBytes; ++i) {
      const auto rest = static_cast<uint8_t>(bytes[i] * kPowers[digit]);
      q[kBytes * digit + i] = static_cast<int8_t>((rest * 3 >> 8) - 1);
    }
  }
  return q + kBytes * kDigits;
}

void TQ1_0(const uint8_t* block, float* out) {
  int8_t q[kSuper];
  int8_t* next = Ternary<32, 5>(block, q);
  next = Ternary<16, 5>(block + 32, next);
  Ternary<4, 4>(block + 48, next);
  Scale<kSuper>(Half(block + 52), q, out);
}

void TQ2_0(const uint8_t* block, float* out) {
  uint8_t q[kSuper];
  int8_t shifted[kSuper];
  TwoBits(block, q);
  Shift<kSuper>(q, 1, shifted);
  Scale<kSuper>(Half(block + 64), shifted, out);
}

// The numbers of E2M1, doubled.
constexpr std::array<int8_t, 16> kTwiceE2M1 = {0, 1,  2,  3,  4,  6,  8,  12,
                                               0, -1, -2, -3, -4, -6, -8, -12};
constexpr std::array<int8_t, 16> kNonlinear = {
    -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

template <int kCount>
void Look(const std::array<int8_t, 16>& table, const uint8_t* q, int8_t* out) {
  for (int i = 0; i < kCount; ++i) out[i] = table[q[i]];
}

void MXFP4(const uint8_t* block, float* out) {
  uint8_t q[32];
  int8_t values[32];
  Nibbles<16>(block + 1, q);
  Look<32>(kTwiceE2M1, q, values);
  // Half of the power of two; the two smallest are subnormal.
  const uint32_t exponent = block[0];
  const uint32_t bits =
      exponent < 2 ? uint32_t{0x00200000} << exponent : (exponent - 1) << 23;
  Scale<32>(FloatOf(bits), values, out);
}

// Returns half of a number of E4M3 without a sign. Its NaN is 0.
float HalfOfUnsignedE4M3(uint8_t code) {
  if (code == 0 || code == 0x7F) return 0;
  const uint32_t exponent = code >> 3 & 0x0F;
  const auto mantissa = static_cast<float>(code & 7);
  if (exponent == 0) return mantissa * 0x1p-10F;
  return (8 + mantissa) * FloatOf((exponent - 7 - 3 - 1 + 127) << 23);
}

void NVFP4(const uint8_t* block, float* out) {
  for (int i = 0; i < 4; ++i) {
    uint8_t q[16];
    int8_t values[16];
    Nibbles<8>(block + 4 + 8 * i, q);
    Look<16>(kTwiceE2M1, q, values);
    Scale<16>(HalfOfUnsignedE4M3(block[i]), values, out + 16 * i);
  }
}

void IQ4NL(const uint8_t* block, float* out) {
  uint8_t q[32];
  int8_t values[32];
  Nibbles<16>(block + 2, q);
  Look<32>(kNonlinear, q, values);
  Scale<32>(Half(block), values, out);
}

void IQ4XS(const uint8_t* block, float* out) {
  const float d = Half(block);
  const uint32_t high = Load<uint16_t>(block + 2);
  for (int i = 0; i < 8; ++i) {
    uint8_t q[32];
    int8_t values[32];
    Nibbles<16>(block + 8 + 16 * i, q);
    Look<32>(kNonlinear, q, values);
    const int low = block[4 + i / 2] >> (4 * (i % 2)) & 0x0F;
    const int scale = (low | static_cast<int>(high >> (2 * i) & 3) << 4) - 32;
    Scale<32>(d * static_cast<float>(scale), values, out + 32 * i);
  }
}

// Unpacks a grid: `kValues` values in each packed number.
template <int kValues, int kBits, size_t kPoints, size_t kMap>
constexpr auto Grid(const std::array<uint16_t, kPoints>& packed,
                    const std::array<int8_t, kMap>& map) {
  std::array<std::array<int8_t, kValues>, kPoints> grid{};
  for (size_t point = 0; point < kPoints; ++point) {
    for (int i = 0; i < kValues; ++i) {
      grid[point][i] = map[packed[point] >> (kBits * i) & ((1 << kBits) - 1)];
    }
  }
  return grid;
}

constexpr auto kIq2Xxs = Grid<8, 2>(kIq2XxsPacked, kIq2XxsMap);
constexpr auto kIq2Xs = Grid<8, 2>(kIq2XsPacked, kIq2XsMap);
constexpr auto kIq2S = Grid<8, 2>(kIq2SPacked, kIq2SMap);
constexpr auto kIq3Xxs = Grid<4, 3>(kIq3XxsPacked, kIq3XxsMap);
constexpr auto kIq3S = Grid<4, 3>(kIq3SPacked, kIq3SMap);
constexpr auto kIq1S = Grid<8, 2>(kIq1SPacked, kIq1SMap);

// out = d * grid, with the signs of the bits. A sign changes no digit.
template <int kCount>
void ScaleSigned(float d, const int8_t* grid, uint8_t signs, float* out) {
  for (int i = 0; i < kCount; ++i) {
    const float product = d * static_cast<float>(grid[i]);
    const uint32_t sign = static_cast<uint32_t>(signs >> i & 1) << 31;
    out[i] = FloatOf(BitsOf(product) ^ sign);
  }
}

float ScaleIq2(float d, int scale) {
  return d * (0.5F + static_cast<float>(scale)) * 0.25F;
}

void IQ2XXS(const uint8_t* block, float* out) {
  const float d = Half(block);
  for (int i = 0; i < 8; ++i) {
    const uint8_t* const codes = block + 2 + 8 * i;
    const auto rest = Load<uint32_t>(codes + 4);
    const float scale = ScaleIq2(d, static_cast<int>(rest >> 28));
    for (int j = 0; j < 4; ++j) {
      ScaleSigned<8>(scale, kIq2Xxs[codes[j]].data(),
                     kSigns[rest >> (7 * j) & 0x7F], out + 32 * i + 8 * j);
    }
  }
}

void IQ2XS(const uint8_t* block, float* out) {
  const float d = Half(block);
  for (int i = 0; i < 32; ++i) {
    const auto code = Load<uint16_t>(block + 2 + 2 * i);
    const int scale = block[66 + i / 4] >> (i / 2 % 2 * 4) & 0x0F;
    ScaleSigned<8>(ScaleIq2(d, scale), kIq2Xs[code & 511].data(),
                   kSigns[code >> 9], out + 8 * i);
  }
}

void IQ2S(const uint8_t* block, float* out) {
  const float d = Half(block);
  for (int i = 0; i < 32; ++i) {
    const int high = block[66 + i / 4] >> (i % 4 * 2) & 3;
    const int scale = block[74 + i / 4] >> (i / 2 % 2 * 4) & 0x0F;
    ScaleSigned<8>(ScaleIq2(d, scale), kIq2S[block[2 + i] | high << 8].data(),
                   block[34 + i], out + 8 * i);
  }
}

void IQ3XXS(const uint8_t* block, float* out) {
  const float d = Half(block);
  for (int i = 0; i < 8; ++i) {
    const auto rest = Load<uint32_t>(block + 66 + 4 * i);
    const float scale = d * (0.5F + static_cast<float>(rest >> 28)) * 0.5F;
    for (int j = 0; j < 8; ++j) {
      const uint8_t signs = kSigns[rest >> (j / 2 * 7) & 0x7F];
      ScaleSigned<4>(scale, kIq3Xxs[block[2 + 8 * i + j]].data(),
                     static_cast<uint8_t>(signs >> (j % 2 * 4)),
                     out + 32 * i + 4 * j);
    }
  }
}

void IQ3S(const uint8_t* block, float* out) {
  const float d = Half(block);
  for (int i = 0; i < 64; ++i) {
    const int high = block[66 + i / 8] >> (i % 8) & 1;
    const int scale = block[106 + i / 16] >> (i / 8 % 2 * 4) & 0x0F;
    ScaleSigned<4>(d * static_cast<float>(1 + 2 * scale),
                   kIq3S[block[2 + i] | high << 8].data(),
                   static_cast<uint8_t>(block[74 + i / 2] >> (i % 2 * 4)),
                   out + 4 * i);
  }
}

// out = d * (grid + delta).
void ScaleShifted(float d, float delta, const int8_t* grid, float* out) {
  for (int i = 0; i < 8; ++i) {
    out[i] = d * (static_cast<float>(grid[i]) + delta);
  }
}

constexpr float kDelta = 0.125F;

void IQ1S(const uint8_t* block, float* out) {
  const float d = Half(block);
  for (int i = 0; i < 8; ++i) {
    const uint32_t high = Load<uint16_t>(block + 34 + 2 * i);
    const float scale = d * static_cast<float>(2 * (high >> 12 & 7) + 1);
    const float delta = (high & 0x8000) == 0 ? kDelta : -kDelta;
    for (int j = 0; j < 4; ++j) {
      const uint32_t code = block[2 + 4 * i + j] | (high >> (3 * j) & 7) << 8;
      ScaleShifted(scale, delta, kIq1S[code].data(), out + 32 * i + 8 * j);
    }
  }
}

void IQ1M(const uint8_t* block, float* out) {
  std::array<uint32_t, 4> scales;
  uint32_t half = 0;  // Four bits of it are at the top of each scale.
  for (int i = 0; i < 4; ++i) {
    scales[i] = Load<uint16_t>(block + 48 + 2 * i);
    half |= (scales[i] & 0xF000) >> (12 - 4 * i);
  }
  const float d = FloatOf(HalfToFloat(static_cast<uint16_t>(half)));
  for (int i = 0; i < 32; ++i) {
    const uint32_t high = block[32 + i / 2] >> (i % 2 * 4);
    const uint32_t scale = scales[i / 8] >> (i / 2 % 4 * 3) & 7;
    ScaleShifted(d * static_cast<float>(2 * scale + 1),
                 (high & 8) == 0 ? kDelta : -kDelta,
                 kIq1S[block[i] | (high & 7) << 8].data(), out + 8 * i);
  }
}

template <DType kFrom>
void Widen(const std::byte* numbers, uint64_t count, float* out) {
  CastElements(numbers, kFrom, reinterpret_cast<std::byte*>(out), DType::kF32,
               count);
}

template <void (*kBlock)(const uint8_t*, float*), int kBytes, int kElements>
void Each(const std::byte* blocks, uint64_t count, float* out) {
  const auto* block = reinterpret_cast<const uint8_t*>(blocks);
  for (uint64_t i = 0; i < count; ++i) {
    kBlock(block + kBytes * i, out + kElements * i);
  }
}

#if defined(__x86_64__)
// The same, with everything inlined and compiled for wider vectors. These
// processors could fuse products and sums; the compiler must not.
template <void (*kBlock)(const uint8_t*, float*), int kBytes, int kElements>
__attribute__((target("avx2"), flatten)) void EachInAvx2(
    const std::byte* blocks, uint64_t count, float* out) {
  Each<kBlock, kBytes, kElements>(blocks, count, out);
}
#endif

template <void (*kBlock)(const uint8_t*, float*), int kBytes, int kElements>
BlocksFunction Fastest() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") != 0) {
    return EachInAvx2<kBlock, kBytes, kElements>;
  }
#endif
  return Each<kBlock, kBytes, kElements>;
}

}  // namespace

BlocksFunction BlocksFunctionOf(DType dtype) {
  switch (dtype) {
    case DType::kF16:
      return Widen<DType::kF16>;
    case DType::kBF16:
      return Widen<DType::kBF16>;
    case DType::kQ4_0:
      return Fastest<Q4_0, 18, 32>();
    case DType::kQ4_1:
      return Fastest<Q4_1, 20, 32>();
    case DType::kQ5_0:
      return Fastest<Q5_0, 22, 32>();
    case DType::kQ5_1:
      return Fastest<Q5_1, 24, 32>();
    case DType::kQ8_0:
      return Fastest<Q8_0, 34, 32>();
    case DType::kQ2K:
      return Fastest<Q2K, 84, kSuper>();
    case DType::kQ3K:
      return Fastest<Q3K, 110, kSuper>();
    case DType::kQ4K:
      return Fastest<Q4K, 144, kSuper>();
    case DType::kQ5K:
      return Fastest<Q5K, 176, kSuper>();
    case DType::kQ6K:
      return Fastest<Q6K, 210, kSuper>();
    case DType::kIQ2XXS:
      return Fastest<IQ2XXS, 66, kSuper>();
    case DType::kIQ2XS:
      return Fastest<IQ2XS, 74, kSuper>();
    case DType::kIQ2S:
      return Fastest<IQ2S, 82, kSuper>();
    case DType::kIQ3XXS:
      return Fastest<IQ3XXS, 98, kSuper>();
    case DType::kIQ3S:
      return Fastest<IQ3S, 110, kSuper>();
    case DType::kIQ1S:
      return Fastest<IQ1S, 50, kSuper>();
    case DType::kIQ1M:
      return Fastest<IQ1M, 56, kSuper>();
    case DType::kIQ4NL:
      return Fastest<IQ4NL, 18, 32>();
    case DType::kIQ4XS:
      return Fastest<IQ4XS, 136, kSuper>();
    case DType::kTQ1_0:
      return Fastest<TQ1_0, 54, kSuper>();
    case DType::kTQ2_0:
      return Fastest<TQ2_0, 66, kSuper>();
    case DType::kMXFP4:
      return Fastest<MXFP4, 17, 32>();
    case DType::kNVFP4:
      return Fastest<NVFP4, 36, 64>();
    default:
      return nullptr;
  }
}

}  // namespace haulway::arithmetic
