// The GGUF header: bytes to facts, with no I/O.
//
//   magic "GGUF", version, number of tensors, number of key-values
//   key-values         a key, the number of a type, a value
//   tensors            a name, dimensions, the number of a type, an offset
//   data               from the next multiple of the alignment on
//
// Specification: docs/formats/gguf.md, whose rules Gnn are those here.

#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "haulway/buffer.h"
#include "haulway/dtype.h"
#include "haulway/index.h"
#include "haulway/options.h"
#include "haulway/status.h"
#include "haulway/tree.h"

namespace haulway::gguf {

inline constexpr std::string_view kMagic = "GGUF";
inline constexpr uint64_t kDefaultAlignment = 32;
// Maximum length of a tensor's name in bytes.
// The key whose value is the alignment of the data.
inline constexpr std::string_view kAlignmentKey = "general.alignment";
inline constexpr uint64_t kLongestName = 63;
inline constexpr uint64_t kLongestKey = 65535;  // In bytes.
inline constexpr uint32_t kMostDimensions = 4;

// Types of values, by their numbers in the format.
enum class ValueType : uint32_t {
  kU8,
  kI8,
  kU16,
  kI16,
  kU32,
  kI32,
  kF32,
  kBool,
  kString,
  kArray,
  kU64,
  kI64,
  kF64,
};
inline constexpr uint32_t kValueTypes =
    static_cast<uint32_t>(ValueType::kF64) + 1;
// Returns the name that Fact::type uses: "u8", "str".
std::string_view Name(ValueType type);
// Returns the size of a number or a bool, and the smallest size of a string or
// an array.
int BytesOf(ValueType type);

struct HeaderTensor {
  std::string_view name;
  DType dtype = DType::kU8;
  // In items; the last dimension varies fastest.
  std::span<const int64_t> shape;
  uint64_t offset = 0;  // Relative to the start of the data.
  uint64_t nbytes = 0;
};

struct Header {
  uint32_t version = 0;
  uint64_t alignment = kDefaultAlignment;
  uint64_t header_bytes = 0;
  uint64_t data_offset = 0;    // header_bytes, rounded up to the alignment.
  std::vector<Fact> metadata;  // In file order.
  LongVector<HeaderTensor> tensors;
};

// Parses the header from `bytes`, the start of a file of `file_bytes`. The
// header refers only to `arena`. Returns nullopt if the header does not end in
// `bytes` and the file has more; `*wanted` is then the minimum number of bytes
// needed. Fails by rules G01 to G18 with kCorrupt, kTruncated, kLimit or
// kUnsupported.
Result<std::optional<Header>> ParseHeader(std::span<const std::byte> bytes,
                                          uint64_t file_bytes,
                                          Strictness strictness,
                                          const ParseLimits& limits,
                                          TreeArena* arena, uint64_t* wanted);

}  // namespace haulway::gguf
