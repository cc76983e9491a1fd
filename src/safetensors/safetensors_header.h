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

// Size of the length field before the header.
inline constexpr uint64_t kPrefixBytes = 8;
// The name of the header's entry with the metadata.
inline constexpr std::string_view kMetadataKey = "__metadata__";
// Number of readable bytes that must follow the header in memory. Their values
// do not matter.
inline constexpr size_t kPaddingBytes = 64;

// Returns the rank of a dtype, its position in kSafetensorsDTypes; -1 if the
// format lacks it. A writer puts tensors of higher rank first.
int RankOf(DType dtype);
// Returns the dtype; nullopt for a name that the format lacks.
std::optional<DType> DTypeNamed(std::string_view name);
// Returns the size of an element in bits. Shapes count elements, and a packed
// item contains several.
inline uint64_t ElementBits(DType dtype) {
  const DTypeInfo& info = Describe(dtype);
  return 8 * uint64_t{info.item_bytes} / info.item_elements;
}

struct HeaderTensor {
  std::string_view name;
  DType dtype = DType::kBool;
  std::span<const int64_t> shape;  // Counts elements, also of four bits.
  uint64_t begin = 0;              // data_offsets.
  uint64_t end = 0;
};

struct Header {
  // In data order; empty tensors in header order.
  LongVector<HeaderTensor> tensors;
  // In file order. Nullopt if there is no `__metadata__`, or it is null.
  std::optional<std::vector<std::pair<std::string_view, std::string_view>>>
      metadata;
};

// Returns N for a file of `file_bytes` that begins with `prefix`. Fails with
// kTruncated or kLimit (rules S01 to S03).
Result<uint64_t> ParsePrefix(std::span<const std::byte> prefix,
                             uint64_t file_bytes, const ParseLimits& limits);

// Parses the first `json_bytes` bytes of `json`, from a file with `data_bytes`
// bytes of data. The header refers to `json` and `arena`. Positions in messages
// are relative to the start of the file. Requires: json.size() >= json_bytes +
// kPaddingBytes. Fails by rules S04 to S15 with kCorrupt, kTruncated, kLimit or
// kUnsupported.
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
  std::string bytes;            // N, the JSON and its padding.
  std::vector<uint32_t> order;  // Rows of the specs, in data order.
  // Parallel to order; relative to the file's start.
  std::vector<uint64_t> offsets;
  uint64_t file_bytes = 0;
};

// The alignment of headers that editing makes: their padding is after the
// metadata, which can grow there.
inline constexpr uint64_t kRoomyAlignment = 4096;

// Lays out a file. The header's size is a multiple of `alignment`, so the first
// tensor starts at one. `in_order` keeps the order of `tensors`, which readers
// do not need, and takes every alignment. With alignment 8 and at most one key
// of metadata, the bytes equal those of the reference's writer. More keys are
// sorted, which the reference does not do. Fails with kInvalidArgument for
// tensors that no reader accepts (equal names, names that are not UTF-8 or are
// "__metadata__", elements that do not fill bytes), and with kLimit for
// max_header_bytes.
Result<EncodedHeader> EncodeHeader(std::span<const TensorSpec> tensors,
                                   const std::optional<Metadata>& metadata,
                                   uint64_t alignment = 8,
                                   bool in_order = false,
                                   const ParseLimits& limits = {});

}  // namespace haulway::safetensors
