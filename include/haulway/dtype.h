// The element types of tensors: one table for all formats.

#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "haulway/status.h"

namespace haulway {

enum class DType : uint8_t {
  kF64,
  kF32,
  kF16,
  kBF16,
  kI64,
  kI32,
  kI16,
  kI8,
  kU64,
  kU32,
  kU16,
  kU8,
  kBool,
  kC32,
  kC64,
  kC128,  // Complex; the number counts both parts.
  kF8E4M3,
  kF8E5M2,
  kF8E4M3FNUZ,
  kF8E5M2FNUZ,
  kF8E8M0,
  kF4E2M1X2,  // Two values in a byte.
  kQI8,
  kQU8,
  kQI32,
  kQU4X2,
  kQU2X4,  // Quantized.
  kBits8,
  kBits16,
  kBits1X8,
  kBits2X4,
  kBits4X2,
  kF6E2M3X4,
  kF6E3M2X4,  // Four values in three bytes.
  kU1,
  kU2,
  kU3,
  kU4,
  kU5,
  kU6,
  kU7,
  kI1,
  kI2,
  kI3,
  kI4,
  kI5,
  kI6,
  kI7,  // A byte each; PyTorch names them, but gives no operations.
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ8_0,
  kQ8_1,
  kQ2K,
  kQ3K,
  kQ4K,
  kQ5K,
  kQ6K,
  kQ8K,
  kIQ2XXS,
  kIQ2XS,
  kIQ3XXS,
  kIQ1S,
  kIQ4NL,
  kIQ3S,
  kIQ2S,
  kIQ4XS,
  kIQ1M,
  kTQ1_0,
  kTQ2_0,
  kMXFP4,
  kNVFP4,
  kQ1_0,
  kQ2_0,    // ggml's blocks of quantized elements; their items are bytes.
  kOpaque,  // Bytes of something else than numbers.
};

inline constexpr int kDTypeCount = static_cast<int>(DType::kOpaque) + 1;

struct DTypeInfo {
  DType dtype;
  std::string_view name;        // Ours, "BF16": in tables, JSON and messages.
  std::string_view torch_name;  // PyTorch's, "bfloat16"; empty if none.
  uint8_t item_bytes;
  uint8_t swap_bytes;  // Unit of a byte-order swap: half of it for complex.
  // Of a quantized type: so many elements stand in so many bytes, which is what
  // its items are; 0 for all others.
  uint16_t block_elements = 0;
  uint16_t block_bytes = 0;
};

HAULWAY_EXPORT const DTypeInfo& Describe(DType dtype);
inline std::string_view Name(DType dtype) { return Describe(dtype).name; }
inline uint64_t ItemBytes(DType dtype) { return Describe(dtype).item_bytes; }

// The shape in elements of a tensor whose items have `shape`: the same, but
// that the last dimension of blocks counts what is in them.
HAULWAY_EXPORT std::vector<int64_t> ElementShape(
    DType dtype, std::span<const int64_t> shape);

// Both return nullopt for a name that is not in the table.
HAULWAY_EXPORT std::optional<DType> DTypeFromName(std::string_view name);
HAULWAY_EXPORT std::optional<DType> DTypeFromTorchName(std::string_view name);

// Whether elements can be cast: any floating point type to any other, rounded
// to nearest even as PyTorch does; booleans, integers and complex numbers to
// types that hold every value of theirs, complex numbers to narrower ones too.
HAULWAY_EXPORT bool CanCast(DType from, DType to);

}  // namespace haulway
