#include "haulway/dtype.h"

#include <array>
#include <cstddef>
#include <string>

namespace haulway {

namespace {

using enum DTypeKind;
using enum InNumpy;

// Names and sizes follow PyTorch's c10/core/ScalarType.h; type codes, dlpack.h;
// numbers, enum ggml_type in ggml.h, where 4, 5, 31 to 33 and 36 to 38 were
// withdrawn.
// clang-format off
constexpr std::array<DTypeInfo, kDTypeCount> kTable = {{
    // Columns: dtype; names in Haulway and torch; bytes of an item and of a
    // swap unit; kind; NumPy; torch's storage class; DLPack; safetensors; ggml;
    // elements per item; elements and bytes per block.
    {DType::kF64, "F64", "float64", 8, 8, kFloat, kItself, "DoubleStorage", 2, "F64", 28},
    {DType::kF32, "F32", "float32", 4, 4, kFloat, kItself, "FloatStorage", 2, "F32", 0},
    {DType::kF16, "F16", "float16", 2, 2, kFloat, kItself, "HalfStorage", 2, "F16", 1},
    {DType::kBF16, "BF16", "bfloat16", 2, 2, kFloat, kMlDtypes, "BFloat16Storage", 4, "BF16", 30},
    {DType::kI64, "I64", "int64", 8, 8, kInt, kItself, "LongStorage", 0, "I64", 27},
    {DType::kI32, "I32", "int32", 4, 4, kInt, kItself, "IntStorage", 0, "I32", 26},
    {DType::kI16, "I16", "int16", 2, 2, kInt, kItself, "ShortStorage", 0, "I16", 25},
    {DType::kI8, "I8", "int8", 1, 1, kInt, kItself, "CharStorage", 0, "I8", 24},
    {DType::kU64, "U64", "uint64", 8, 8, kUInt, kItself, "", 1, "U64"},
    {DType::kU32, "U32", "uint32", 4, 4, kUInt, kItself, "", 1, "U32"},
    {DType::kU16, "U16", "uint16", 2, 2, kUInt, kItself, "", 1, "U16"},
    {DType::kU8, "U8", "uint8", 1, 1, kUInt, kItself, "ByteStorage", 1, "U8"},
    {DType::kBool, "BOOL", "bool", 1, 1, kBool, kItself, "BoolStorage", 6, "BOOL"},
    {DType::kC32, "C32", "complex32", 4, 2, kComplex},
    {DType::kC64, "C64", "complex64", 8, 4, kComplex, kItself, "ComplexFloatStorage", 5, "C64"},
    {DType::kC128, "C128", "complex128", 16, 8, kComplex, kItself, "ComplexDoubleStorage", 5},
    {DType::kF8E4M3, "F8_E4M3", "float8_e4m3fn", 1, 1, kFloat, kMlDtypes, "", 10, "F8_E4M3"},
    {DType::kF8E5M2, "F8_E5M2", "float8_e5m2", 1, 1, kFloat, kMlDtypes, "", 12, "F8_E5M2"},
    {DType::kF8E4M3FNUZ, "F8_E4M3FNUZ", "float8_e4m3fnuz", 1, 1, kFloat, kMlDtypes, "", 11, "F8_E4M3FNUZ"},
    {DType::kF8E5M2FNUZ, "F8_E5M2FNUZ", "float8_e5m2fnuz", 1, 1, kFloat, kMlDtypes, "", 13, "F8_E5M2FNUZ"},
    {DType::kF8E8M0, "F8_E8M0", "float8_e8m0fnu", 1, 1, kFloat, kMlDtypes, "", 14, "F8_E8M0"},
    {DType::kF4E2M1X2, "F4_E2M1X2", "float4_e2m1fn_x2", 1, 1, kPacked, kNo, "", -1, "F4", -1, 2},
    {DType::kQI8, "QI8", "qint8", 1, 1, kQuantized, kNo, "QInt8Storage"},
    {DType::kQU8, "QU8", "quint8", 1, 1, kQuantized, kNo, "QUInt8Storage"},
    {DType::kQI32, "QI32", "qint32", 4, 4, kQuantized, kNo, "QInt32Storage"},
    {DType::kQU4X2, "QU4X2", "quint4x2", 1, 1, kQuantized, kNo, "QUInt4x2Storage", -1, "", -1, 2},
    {DType::kQU2X4, "QU2X4", "quint2x4", 1, 1, kQuantized, kNo, "QUInt2x4Storage", -1, "", -1, 4},
    {DType::kBits8, "BITS8", "bits8", 1, 1, kBits},
    {DType::kBits16, "BITS16", "bits16", 2, 2, kBits},
    {DType::kBits1X8, "BITS1X8", "bits1x8", 1, 1, kBits, kNo, "", -1, "", -1, 8},
    {DType::kBits2X4, "BITS2X4", "bits2x4", 1, 1, kBits, kNo, "", -1, "", -1, 4},
    {DType::kBits4X2, "BITS4X2", "bits4x2", 1, 1, kBits, kNo, "", -1, "", -1, 2},
    {DType::kF6E2M3X4, "F6_E2M3X4", "", 3, 1, kPacked, kNo, "", -1, "F6_E2M3", -1, 4},
    {DType::kF6E3M2X4, "F6_E3M2X4", "", 3, 1, kPacked, kNo, "", -1, "F6_E3M2", -1, 4},
    {DType::kU1, "U1", "uint1", 1, 1, kUInt},
    {DType::kU2, "U2", "uint2", 1, 1, kUInt},
    {DType::kU3, "U3", "uint3", 1, 1, kUInt},
    {DType::kU4, "U4", "uint4", 1, 1, kUInt},
    {DType::kU5, "U5", "uint5", 1, 1, kUInt},
    {DType::kU6, "U6", "uint6", 1, 1, kUInt},
    {DType::kU7, "U7", "uint7", 1, 1, kUInt},
    {DType::kI1, "I1", "int1", 1, 1, kInt},
    {DType::kI2, "I2", "int2", 1, 1, kInt},
    {DType::kI3, "I3", "int3", 1, 1, kInt},
    {DType::kI4, "I4", "int4", 1, 1, kInt},
    {DType::kI5, "I5", "int5", 1, 1, kInt},
    {DType::kI6, "I6", "int6", 1, 1, kInt},
    {DType::kI7, "I7", "int7", 1, 1, kInt},
    // ggml's names, and elements and bytes per block, from ggml-common.h.
    {DType::kQ4_0, "Q4_0", "", 1, 1, kBlocks, kNo, "", -1, "", 2, 1, 32, 18},
    {DType::kQ4_1, "Q4_1", "", 1, 1, kBlocks, kNo, "", -1, "", 3, 1, 32, 20},
    {DType::kQ5_0, "Q5_0", "", 1, 1, kBlocks, kNo, "", -1, "", 6, 1, 32, 22},
    {DType::kQ5_1, "Q5_1", "", 1, 1, kBlocks, kNo, "", -1, "", 7, 1, 32, 24},
    {DType::kQ8_0, "Q8_0", "", 1, 1, kBlocks, kNo, "", -1, "", 8, 1, 32, 34},
    {DType::kQ8_1, "Q8_1", "", 1, 1, kBlocks, kNo, "", -1, "", 9, 1, 32, 36},
    {DType::kQ2K, "Q2_K", "", 1, 1, kBlocks, kNo, "", -1, "", 10, 1, 256, 84},
    {DType::kQ3K, "Q3_K", "", 1, 1, kBlocks, kNo, "", -1, "", 11, 1, 256, 110},
    {DType::kQ4K, "Q4_K", "", 1, 1, kBlocks, kNo, "", -1, "", 12, 1, 256, 144},
    {DType::kQ5K, "Q5_K", "", 1, 1, kBlocks, kNo, "", -1, "", 13, 1, 256, 176},
    {DType::kQ6K, "Q6_K", "", 1, 1, kBlocks, kNo, "", -1, "", 14, 1, 256, 210},
    {DType::kQ8K, "Q8_K", "", 1, 1, kBlocks, kNo, "", -1, "", 15, 1, 256, 292},
    {DType::kIQ2XXS, "IQ2_XXS", "", 1, 1, kBlocks, kNo, "", -1, "", 16, 1, 256, 66},
    {DType::kIQ2XS, "IQ2_XS", "", 1, 1, kBlocks, kNo, "", -1, "", 17, 1, 256, 74},
    {DType::kIQ3XXS, "IQ3_XXS", "", 1, 1, kBlocks, kNo, "", -1, "", 18, 1, 256, 98},
    {DType::kIQ1S, "IQ1_S", "", 1, 1, kBlocks, kNo, "", -1, "", 19, 1, 256, 50},
    {DType::kIQ4NL, "IQ4_NL", "", 1, 1, kBlocks, kNo, "", -1, "", 20, 1, 32, 18},
    {DType::kIQ3S, "IQ3_S", "", 1, 1, kBlocks, kNo, "", -1, "", 21, 1, 256, 110},
    {DType::kIQ2S, "IQ2_S", "", 1, 1, kBlocks, kNo, "", -1, "", 22, 1, 256, 82},
    {DType::kIQ4XS, "IQ4_XS", "", 1, 1, kBlocks, kNo, "", -1, "", 23, 1, 256, 136},
    {DType::kIQ1M, "IQ1_M", "", 1, 1, kBlocks, kNo, "", -1, "", 29, 1, 256, 56},
    {DType::kTQ1_0, "TQ1_0", "", 1, 1, kBlocks, kNo, "", -1, "", 34, 1, 256, 54},
    {DType::kTQ2_0, "TQ2_0", "", 1, 1, kBlocks, kNo, "", -1, "", 35, 1, 256, 66},
    {DType::kMXFP4, "MXFP4", "", 1, 1, kBlocks, kNo, "", -1, "", 39, 1, 32, 17},
    {DType::kNVFP4, "NVFP4", "", 1, 1, kBlocks, kNo, "", -1, "", 40, 1, 64, 36},
    {DType::kQ1_0, "Q1_0", "", 1, 1, kBlocks, kNo, "", -1, "", 41, 1, 128, 18},
    {DType::kQ2_0, "Q2_0", "", 1, 1, kBlocks, kNo, "", -1, "", 42, 1, 64, 18},
    {DType::kOpaque, "OPAQUE", "", 1, 1, kBytes},
}};
// clang-format on

constexpr bool InOrder() {
  for (int i = 0; i < kDTypeCount; ++i) {
    if (static_cast<int>(kTable[i].dtype) != i) return false;
  }
  return true;
}
static_assert(InOrder(), "the table is indexed by DType");

// Returns the type letter of a kind that NumPy has.
char NumpyLetter(DTypeKind kind) {
  switch (kind) {
    case DTypeKind::kFloat:
      return 'f';
    case DTypeKind::kComplex:
      return 'c';
    case DTypeKind::kInt:
      return 'i';
    case DTypeKind::kUInt:
      return 'u';
    case DTypeKind::kBool:
      return 'b';
    default:
      return 0;
  }
}

}  // namespace

const DTypeInfo& Describe(DType dtype) {
  return kTable[static_cast<size_t>(dtype)];
}

std::span<const DTypeInfo> AllDTypes() { return kTable; }

std::string NumpyCode(DType dtype) {
  const DTypeInfo& info = Describe(dtype);
  if (info.in_numpy != InNumpy::kItself) return {};
  return NumpyLetter(info.kind) + std::to_string(info.item_bytes);
}

DType NumpyBits(DType dtype) {
  const DTypeInfo& info = Describe(dtype);
  if (info.in_numpy == InNumpy::kItself) return dtype;
  if (dtype == DType::kQI8) return DType::kI8;
  if (info.item_bytes == 4) {
    return dtype == DType::kQI32 ? DType::kI32 : DType::kU32;
  }
  return info.item_bytes == 2 ? DType::kU16 : DType::kU8;
}

std::optional<DType> DTypeFromNumpyCode(std::string_view code) {
  for (const DTypeInfo& info : kTable) {
    if (code.starts_with(NumpyLetter(info.kind)) &&
        NumpyCode(info.dtype) == code) {
      return info.dtype;
    }
  }
  return std::nullopt;
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
