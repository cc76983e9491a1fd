// The element types of tensors: one table for all formats.

#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
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
  kC128,  // Complex; the number counts the bits of both parts.
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
  kI7,  // One byte each; PyTorch names them but has no operations.
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
  kQ2_0,    // ggml's blocks of quantized elements; an item is one byte.
  kOpaque,  // Bytes that are not numbers.
};

inline constexpr int kDTypeCount = static_cast<int>(DType::kOpaque) + 1;

// What an item of a dtype is.
enum class DTypeKind : uint8_t {
  kFloat,      // One floating-point number.
  kComplex,    // Two floating-point numbers: real and imaginary part.
  kInt,        // One signed integer.
  kUInt,       // One unsigned integer.
  kBool,       // One byte, 0 or 1.
  kQuantized,  // Integers whose scale and zero point lie beside the tensor.
  kPacked,     // Several floating-point numbers.
  kBits,       // Bits without a meaning of their own.
  kBlocks,     // A byte of a block that holds elements and their scale.
  kBytes,      // A byte of something that is not numbers.
};

// Whether NumPy knows a dtype by its torch_name.
enum class InNumpy : uint8_t {
  kNo,
  kItself,    // As one of its own types, and .npy files hold it.
  kMlDtypes,  // If the package ml_dtypes is installed.
};

// All that any format, framework or program calls a dtype, or must know of it.
// Each text ends with a NUL, as literals do. A new dtype is a value of DType
// and a row of the table in dtype.cc.
struct DTypeInfo {
  DType dtype;
  // Haulway's name, "BF16", in tables, JSON and messages.
  std::string_view name;
  // PyTorch's name, "bfloat16"; empty if it has none.
  std::string_view torch_name;
  uint8_t item_bytes;
  uint8_t swap_bytes;  // Unit of a byte-order swap; for complex, half the item.
  DTypeKind kind;
  InNumpy in_numpy = InNumpy::kNo;
  // torch's class of storages, "DoubleStorage"; empty if there is none.
  std::string_view storage_class = {};
  // The type code in dlpack.h; -1 if DLPack has none.
  int8_t dlpack_code = -1;
  // The name in safetensors files; empty if they cannot hold the dtype.
  std::string_view safetensors_name = {};
  // The number in GGUF files, enum ggml_type; -1 if they cannot hold the dtype.
  int8_t ggml_type = -1;
  // Elements in one item, as safetensors files count them.
  uint8_t item_elements = 1;
  // For ggml's quantized types: block_elements elements are stored in
  // block_bytes bytes, and the items are those bytes. 0 for all other types.
  uint16_t block_elements = 0;
  uint16_t block_bytes = 0;
};

HAULWAY_EXPORT const DTypeInfo& Describe(DType dtype);
inline std::string_view Name(DType dtype) { return Describe(dtype).name; }
inline uint64_t ItemBytes(DType dtype) { return Describe(dtype).item_bytes; }

// NumPy's code of a dtype is "f8", which .npy files have behind the byte order.
// Empty or nullopt if NumPy itself lacks the dtype.
HAULWAY_EXPORT std::string NumpyCode(DType dtype);
HAULWAY_EXPORT std::optional<DType> DTypeFromNumpyCode(std::string_view code);

// Returns the dtype of NumPy's own that holds the bits of an item: `dtype` if
// NumPy has it, the integer of the same size if not. An item of three bytes is
// three U8.
HAULWAY_EXPORT DType NumpyBits(DType dtype);

// Every dtype, in the order of DType.
HAULWAY_EXPORT std::span<const DTypeInfo> AllDTypes();

// Returns the shape in elements of a tensor whose items have `shape`. Only
// ggml's quantized types differ: the last dimension counts elements instead of
// bytes.
HAULWAY_EXPORT std::vector<int64_t> ElementShape(
    DType dtype, std::span<const int64_t> shape);

// Both return nullopt for an unknown name.
HAULWAY_EXPORT std::optional<DType> DTypeFromName(std::string_view name);
HAULWAY_EXPORT std::optional<DType> DTypeFromTorchName(std::string_view name);

// Returns whether elements can be cast: from any floating-point type to any
// other, rounded to nearest even as PyTorch does; from booleans, integers and
// complex numbers to types that hold every value of theirs; and from complex
// numbers to narrower complex types.
HAULWAY_EXPORT bool CanCast(DType from, DType to);

}  // namespace haulway
