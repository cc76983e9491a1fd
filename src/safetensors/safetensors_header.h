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
#include "haulway/safetensors.h"
#include "haulway/status.h"
#include "haulway/tree.h"

namespace haulway::safetensors {

// Size of the length in front of the header.
inline constexpr uint64_t kPrefixBytes = 8;
// Readable bytes that must follow the header in memory; their values do not
// matter.
inline constexpr size_t kPaddingBytes = 64;

// A writer puts tensors of a higher rank, the place in
// kSafetensorsDTypes, first. -1 for a
// dtype that the format lacks.
int RankOf(DType dtype);
// Nullopt for a name that the format lacks.
std::optional<DType> DTypeNamed(std::string_view name);
// Shapes count elements, of which a packed item holds several.
inline uint64_t ElementBits(DType dtype) {
  const DTypeInfo& info = Describe(dtype);
  return 8 * uint64_t{info.item_bytes} / info.item_elements;
}

struct HeaderTensor {
  std::string_view name;
  DType dtype = DType::kBool;
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
  DType dtype = DType::kBool;
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
