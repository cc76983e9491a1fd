// The start of a tensorizer file: magic, file header and, in one layout, the
// bounds of its segments. Also detects which layout it is. A codec: bytes to
// facts, no I/O.

#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "haulway/format.h"
#include "haulway/status.h"
#include "tensorizer/segment_head.h"

namespace haulway::tensorizer {

inline constexpr std::string_view kMagic = "|TZR|";
inline constexpr uint64_t kFileHeaderBytes = 60;
inline constexpr uint64_t kLengthOffset = 5 + kFileHeaderBytes;
inline constexpr uint64_t kIndexOffset = kLengthOffset + 8;
// The size that released writers reserve for the index.
inline constexpr uint64_t kReservedIndexBytes = 262144;
// A larger index is a multiple of this.
inline constexpr uint64_t kIndexStep = 4096;
inline constexpr uint64_t kEndMarkBytes = 8;
// Sizes in the layout of PR #170.
inline constexpr uint64_t kLayoutBodyBytes = 45;
inline constexpr uint64_t kSegmentIndexStart = kIndexOffset + kLayoutBodyBytes;
// Enough bytes to parse the preamble.
inline constexpr uint64_t kPreambleBytes = kSegmentHeadBytes;

inline constexpr uint64_t kFlagEncrypted = 1;
inline constexpr uint64_t kFlagTagged = 2;
// Set in Haulway's files: a layout section of version 2 follows. Other readers
// refuse such files.
inline constexpr uint64_t kFlagSegments = uint64_t{1} << 63;

enum class Layout : uint8_t {
  kInterleaved,   // Header, data, header, data: every release.
  kHeadersFirst,  // v3.0.0-dev: all headers, then all data.
  // PR #170: like kHeadersFirst, with offsets relative to segments. In version
  // 2, segments may have any order.
  kSegments,
};
std::string_view Name(Layout layout);

// What the digests in a tensor header cover in addition to the data.
enum class HashRule : uint8_t {
  kValuesZeroed,   // Releases: the header with zeros for the hash values.
  kWithoutHashes,  // 3.0: the header without its hash block.
  kEither,         // The geometry matches both.
};
// Of tensors in segments.
inline constexpr HashRule kSegmentHashes = HashRule::kWithoutHashes;

struct Preamble {
  // As stored.
  uint32_t version = 0;
  uint64_t flags = 0;
  uint64_t data_bytes = 0;
  uint64_t count = 0;
  uint64_t index_bytes = 0;

  uint64_t index_offset = kIndexOffset;
  Layout layout = Layout::kInterleaved;
  HashRule hash_rule = HashRule::kValuesZeroed;
  bool encrypted = false;  // Every header has a crypt block.
  bool tagged = false;     // Every index entry has a version.
  // True for version 5 without the flag that released files have. Only the
  // index can tell whether the file is interleaved.
  bool layout_open = false;
  // Only for kSegments.
  uint64_t header_start = 0;
  uint64_t header_end = 0;  // The latest position where the headers can end.
  uint64_t data_start = 0;
  uint64_t data_end = 0;                // Only in version 2.
  std::optional<SegmentHead> segments;  // Only in version 2.
};

// Returns whether `head` begins a file of this format.
bool IsTensorizer(std::span<const std::byte> head);

// Parses the preamble by rules F01 to F04, F06, X01 to X03, S01 to S07 and the
// part of I01 that bounds the index. `head` is the first kPreambleBytes of the
// file, or all of it.
Result<Preamble> ParsePreamble(std::span<const std::byte> head,
                               uint64_t file_bytes, const OpenOptions& options);

}  // namespace haulway::tensorizer
