// The layout section of a tensorizer file in segments: where index, headers,
// data and notes are (docs/formats/tensorizer.md, "Segments"). Version 1 is
// that of PR #170. Version 2 is Haulway's, and stores the content length of
// each segment. A codec: bytes to facts and back, no I/O.

#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "haulway/status.h"

namespace haulway::tensorizer {

// The part of the first block that is used: one disk sector, which is written
// atomically.
inline constexpr uint64_t kSegmentHeadBytes = 512;
// The block size that Haulway writes.
inline constexpr uint64_t kSegmentBlockBytes = 4096;
inline constexpr uint64_t kMaxSegmentBlockBytes = uint64_t{1} << 20;
inline constexpr size_t kMaxDataFileName = 255;

struct Segment {
  uint64_t start = 0;
  uint64_t end = 0;
  // Length of the content from `start`; the rest is slack.
  uint64_t data_length = 0;
  uint32_t crc32 = 0;  // For index and notes; else 0.

  friend bool operator==(const Segment&, const Segment&) = default;
};

// Blocks about to be inserted into the file, or just inserted: the size of the
// file tells which. The insertion moves every bound of `at` or more by `bytes`.
struct SegmentGrowth {
  uint64_t at = 0;
  uint64_t bytes = 0;
  uint64_t file_bytes = 0;  // File size before the insertion.

  friend bool operator==(const SegmentGrowth&, const SegmentGrowth&) = default;
};

struct SegmentHead {
  uint64_t block_bytes = kSegmentBlockBytes;
  Segment index;
  Segment headers;
  Segment data;
  std::optional<Segment> notes;
  // Name of the file with the data, in the same folder; empty if the data is in
  // this file. Bounds in `data` count from the start of that file.
  std::string data_file;
  std::optional<SegmentGrowth> growth;

  friend bool operator==(const SegmentHead&, const SegmentHead&) = default;
};

// Parses the head by rules S01 to S07, except for the bounds of data in a
// separate file. `head` is the first kSegmentHeadBytes of the file, or all of
// it. If blocks were being inserted, returns the layout that holds now, without
// `growth`.
Result<SegmentHead> ParseSegmentHead(std::span<const std::byte> head,
                                     uint64_t file_bytes);

// Encodes the layout section, from the length of its body on, and its checksum.
// `before` is the bytes of the file in front of it. Requires: the name of the
// data file is at most kMaxDataFileName long.
std::vector<std::byte> EncodeSegmentHead(const SegmentHead& head,
                                         std::span<const std::byte> before);

// Returns the layout after the blocks are inserted.
SegmentHead Grown(SegmentHead head);

}  // namespace haulway::tensorizer
