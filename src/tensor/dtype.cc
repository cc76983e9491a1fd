#include "haulway/dtype.h"

#include <array>

namespace haulway {

namespace {

// PyTorch's names and sizes: c10/core/ScalarType.h.
constexpr std::array<DTypeInfo, kDTypeCount> kTable = {{
    {DType::kF64, "F64", "float64", 8, 8},
    {DType::kF32, "F32", "float32", 4, 4},
    {DType::kF16, "F16", "float16", 2, 2},
    {DType::kBF16, "BF16", "bfloat16", 2, 2},
    {DType::kI64, "I64", "int64", 8, 8},
    {DType::kI32, "I32", "int32", 4, 4},
    {DType::kI16, "I16", "int16", 2, 2},
    {DType::kI8, "I8", "int8", 1, 1},
    {DType::kU64, "U64", "uint64", 8, 8},
    {DType::kU32, "U32", "uint32", 4, 4},
    {DType::kU16, "U16", "uint16", 2, 2},
    {DType::kU8, "U8", "uint8", 1, 1},
    {DType::kBool, "BOOL", "bool", 1, 1},
    {DType::kC32, "C32", "complex32", 4, 2},
    {DType::kC64, "C64", "complex64", 8, 4},
    {DType::kC128, "C128", "complex128", 16, 8},
    {DType::kF8E4M3, "F8_E4M3", "float8_e4m3fn", 1, 1},
    {DType::kF8E5M2, "F8_E5M2", "float8_e5m2", 1, 1},
    {DType::kF8E4M3FNUZ, "F8_E4M3FNUZ", "float8_e4m3fnuz", 1, 1},
    {DType::kF8E5M2FNUZ, "F8_E5M2FNUZ", "float8_e5m2fnuz", 1, 1},
    {DType::kF8E8M0, "F8_E8M0", "float8_e8m0fnu", 1, 1},
    {DType::kF4E2M1X2, "F4_E2M1X2", "float4_e2m1fn_x2", 1, 1},
    {DType::kQI8, "QI8", "qint8", 1, 1},
    {DType::kQU8, "QU8", "quint8", 1, 1},
    {DType::kQI32, "QI32", "qint32", 4, 4},
    {DType::kQU4X2, "QU4X2", "quint4x2", 1, 1},
    {DType::kQU2X4, "QU2X4", "quint2x4", 1, 1},
    {DType::kBits8, "BITS8", "bits8", 1, 1},
    {DType::kBits16, "BITS16", "bits16", 2, 2},
    {DType::kBits1X8, "BITS1X8", "bits1x8", 1, 1},
    {DType::kBits2X4, "BITS2X4", "bits2x4", 1, 1},
    {DType::kBits4X2, "BITS4X2", "bits4x2", 1, 1},
    {DType::kF6E2M3X4, "F6_E2M3X4", "", 3, 1},
    {DType::kF6E3M2X4, "F6_E3M2X4", "", 3, 1},
    {DType::kU1, "U1", "uint1", 1, 1},
    {DType::kU2, "U2", "uint2", 1, 1},
    {DType::kU3, "U3", "uint3", 1, 1},
    {DType::kU4, "U4", "uint4", 1, 1},
    {DType::kU5, "U5", "uint5", 1, 1},
    {DType::kU6, "U6", "uint6", 1, 1},
    {DType::kU7, "U7", "uint7", 1, 1},
    {DType::kI1, "I1", "int1", 1, 1},
    {DType::kI2, "I2", "int2", 1, 1},
    {DType::kI3, "I3", "int3", 1, 1},
    {DType::kI4, "I4", "int4", 1, 1},
    {DType::kI5, "I5", "int5", 1, 1},
    {DType::kI6, "I6", "int6", 1, 1},
    {DType::kI7, "I7", "int7", 1, 1},
    // ggml's names, elements and bytes of a block: ggml-common.h.
    {DType::kQ4_0, "Q4_0", "", 1, 1, 32, 18},
    {DType::kQ4_1, "Q4_1", "", 1, 1, 32, 20},
    {DType::kQ5_0, "Q5_0", "", 1, 1, 32, 22},
    {DType::kQ5_1, "Q5_1", "", 1, 1, 32, 24},
    {DType::kQ8_0, "Q8_0", "", 1, 1, 32, 34},
    {DType::kQ8_1, "Q8_1", "", 1, 1, 32, 36},
    {DType::kQ2K, "Q2_K", "", 1, 1, 256, 84},
    {DType::kQ3K, "Q3_K", "", 1, 1, 256, 110},
    {DType::kQ4K, "Q4_K", "", 1, 1, 256, 144},
    {DType::kQ5K, "Q5_K", "", 1, 1, 256, 176},
    {DType::kQ6K, "Q6_K", "", 1, 1, 256, 210},
    {DType::kQ8K, "Q8_K", "", 1, 1, 256, 292},
    {DType::kIQ2XXS, "IQ2_XXS", "", 1, 1, 256, 66},
    {DType::kIQ2XS, "IQ2_XS", "", 1, 1, 256, 74},
    {DType::kIQ3XXS, "IQ3_XXS", "", 1, 1, 256, 98},
    {DType::kIQ1S, "IQ1_S", "", 1, 1, 256, 50},
    {DType::kIQ4NL, "IQ4_NL", "", 1, 1, 32, 18},
    {DType::kIQ3S, "IQ3_S", "", 1, 1, 256, 110},
    {DType::kIQ2S, "IQ2_S", "", 1, 1, 256, 82},
    {DType::kIQ4XS, "IQ4_XS", "", 1, 1, 256, 136},
    {DType::kIQ1M, "IQ1_M", "", 1, 1, 256, 56},
    {DType::kTQ1_0, "TQ1_0", "", 1, 1, 256, 54},
    {DType::kTQ2_0, "TQ2_0", "", 1, 1, 256, 66},
    {DType::kMXFP4, "MXFP4", "", 1, 1, 32, 17},
    {DType::kNVFP4, "NVFP4", "", 1, 1, 64, 36},
    {DType::kQ1_0, "Q1_0", "", 1, 1, 128, 18},
    {DType::kQ2_0, "Q2_0", "", 1, 1, 64, 18},
    {DType::kOpaque, "OPAQUE", "", 1, 1},
}};

constexpr bool InOrder() {
  for (int i = 0; i < kDTypeCount; ++i) {
    if (static_cast<int>(kTable[i].dtype) != i) return false;
  }
  return true;
}
static_assert(InOrder(), "the table is indexed by DType");

}  // namespace

const DTypeInfo& Describe(DType dtype) {
  return kTable[static_cast<size_t>(dtype)];
}

std::vector<int64_t> ElementShape(DType dtype, std::span<const int64_t> shape) {
  std::vector<int64_t> elements(shape.begin(), shape.end());
  const DTypeInfo& info = Describe(dtype);
  if (info.block_bytes != 0 && !elements.empty()) {
    elements.back() = elements.back() / info.block_bytes * info.block_elements;
  }
  return elements;
}

std::optional<DType> DTypeFromName(std::string_view name) {
  for (const DTypeInfo& info : kTable) {
    if (info.name == name) return info.dtype;
  }
  return std::nullopt;
}

std::optional<DType> DTypeFromTorchName(std::string_view name) {
  if (name.empty()) return std::nullopt;
  for (const DTypeInfo& info : kTable) {
    if (info.torch_name == name) return info.dtype;
  }
  return std::nullopt;
}

}  // namespace haulway
