// The safetensors header: bytes to facts and back, with no I/O.
//
//   bytes 0 to 7       N, little-endian
//   bytes 8 to 8+N     a JSON object, padded with spaces
//   the rest           tensor data, packed; offsets count from here
//
// Specification: docs/formats/safetensors.md, whose rules Snn are those here.

#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "haulway/buffer.h"
#include "haulway/dtype.h"
#include "haulway/options.h"
#include "haulway/status.h"
#include "haulway/tree.h"

namespace haulway::safetensors {

// Of the length in front of the header.
inline constexpr uint64_t kPrefixBytes = 8;
// Readable bytes that must follow the header in memory; their values do not
// matter.
inline constexpr size_t kPaddingBytes = 64;

// In the writer's order, lowest first.
enum class Dtype : uint8_t {
  kBool,
  kF4,
  kF6E2M3,
  kF6E3M2,
  kU8,
  kI8,
  kF8E5M2,
  kF8E4M3,
  kF8E8M0,
  kF8E4M3FNUZ,
  kF8E5M2FNUZ,
  kI16,
  kU16,
  kF16,
  kBF16,
  kI32,
  kU32,
  kF32,
  kC64,
  kF64,
  kI64,
  kU64,
};
inline constexpr int kDtypeCount = static_cast<int>(Dtype::kU64) + 1;

struct DtypeFacts {
  std::string_view name;  // "F8_E4M3".
  uint8_t bits;
  DType dtype;      // Haulway's, which counts packed items:
  uint8_t in_item;  // so many elements stand in one item.
};
const DtypeFacts& Describe(Dtype dtype);
// Nullopt for a type that the format lacks.
std::optional<Dtype> DtypeOf(DType dtype);

struct HeaderTensor {
  std::string_view name;
  Dtype dtype = Dtype::kBool;
  std::span<const int64_t> shape;  // In elements, of four bits too.
  uint64_t begin = 0;              // data_offsets.
  uint64_t end = 0;
};

struct Header {
  // In the order of the data; of empty tensors, in that of the header.
  LongVector<HeaderTensor> tensors;
  // Nullopt if there is no `__metadata__`, or it is null. In file order.
  std::optional<std::vector<std::pair<std::string_view, std::string_view>>>
      metadata;
};

// The N of a file of `file_bytes` that begins with `prefix`. Fails with
// kTruncated or kLimit (S01 to S03); then N is not to be used.
Result<uint64_t> ParsePrefix(std::span<const std::byte> prefix,
                             uint64_t file_bytes, const ParseLimits& limits);

// Parses the `json_bytes` bytes at the start of `json`, of a file with
// `data_bytes` bytes of data. The header refers to `json` and `arena`.
// Positions in messages count from the start of the file. Requires:
// json.size() >= json_bytes + kPaddingBytes. Fails by rules S04 to S15, with
// kCorrupt, kTruncated, kLimit or kUnsupported.
Result<Header> ParseHeader(std::span<const std::byte> json, uint64_t json_bytes,
                           uint64_t data_bytes, Strictness strictness,
                           const ParseLimits& limits, TreeArena* arena);

// A tensor to write.
struct TensorSpec {
  std::string_view name;
  Dtype dtype = Dtype::kBool;
  std::span<const int64_t> shape;  // In elements.
};

using Metadata = std::vector<std::pair<std::string_view, std::string_view>>;

struct EncodedHeader {
  std::string bytes;              // N, the JSON and its padding.
  std::vector<uint32_t> order;    // Rows of the specs, as their data lies.
  std::vector<uint64_t> offsets;  // Parallel to order, from the file's start.
  uint64_t file_bytes = 0;
};

// Lays out a file. The header's size is a multiple of `alignment`, which is
// then where the first tensor starts. With 8 and at most one key of metadata
// the bytes are those of the reference's writer; more keys are sorted, which
// it does not do. Fails with kInvalidArgument for what no reader would take
// (equal names, names that are not UTF-8 or are "__metadata__", elements that
// do not fill bytes) and kLimit for max_header_bytes.
Result<EncodedHeader> EncodeHeader(std::span<const TensorSpec> tensors,
                                   const std::optional<Metadata>& metadata,
                                   uint64_t alignment = 8,
                                   const ParseLimits& limits = {});

}  // namespace haulway::safetensors
