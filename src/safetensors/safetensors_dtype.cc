#include <array>

#include "safetensors/safetensors_header.h"

namespace haulway::safetensors {

namespace {

constexpr std::array<DtypeFacts, kDtypeCount> kTable = {{
    {"BOOL", 8, DType::kBool, 1},
    {"F4", 4, DType::kF4E2M1X2, 2},
    {"F6_E2M3", 6, DType::kF6E2M3X4, 4},
    {"F6_E3M2", 6, DType::kF6E3M2X4, 4},
    {"U8", 8, DType::kU8, 1},
    {"I8", 8, DType::kI8, 1},
    {"F8_E5M2", 8, DType::kF8E5M2, 1},
    {"F8_E4M3", 8, DType::kF8E4M3, 1},
    {"F8_E8M0", 8, DType::kF8E8M0, 1},
    {"F8_E4M3FNUZ", 8, DType::kF8E4M3FNUZ, 1},
    {"F8_E5M2FNUZ", 8, DType::kF8E5M2FNUZ, 1},
    {"I16", 16, DType::kI16, 1},
    {"U16", 16, DType::kU16, 1},
    {"F16", 16, DType::kF16, 1},
    {"BF16", 16, DType::kBF16, 1},
    {"I32", 32, DType::kI32, 1},
    {"U32", 32, DType::kU32, 1},
    {"F32", 32, DType::kF32, 1},
    {"C64", 64, DType::kC64, 1},
    {"F64", 64, DType::kF64, 1},
    {"I64", 64, DType::kI64, 1},
    {"U64", 64, DType::kU64, 1},
}};

}  // namespace

const DtypeFacts& Describe(Dtype dtype) {
  return kTable[static_cast<size_t>(dtype)];
}

std::optional<Dtype> DtypeOf(DType dtype) {
  for (int i = 0; i < kDtypeCount; ++i) {
    if (kTable[i].dtype == dtype) return static_cast<Dtype>(i);
  }
  return std::nullopt;
}

}  // namespace haulway::safetensors
