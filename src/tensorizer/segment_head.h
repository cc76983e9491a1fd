// The layout section of a tensorizer file in segments: where index, headers,
// data and notes lie (docs/formats/tensorizer.md, "Segments"). Version 1 is
// PR #170's; version 2 is Haulway's, which gives the length of what is in each
// segment. A codec: bytes to facts and back, no I/O.

#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "haulway/status.h"

namespace haulway::tensorizer {

// The part of the first block that has a meaning: one disk sector, so that it
// is written in one piece.
inline constexpr uint64_t kSegmentHeadBytes = 512;
inline constexpr uint64_t kSegmentBlockBytes = 4096;  // What is written.
inline constexpr uint64_t kMaxSegmentBlockBytes = uint64_t{1} << 20;
inline constexpr size_t kMaxDataFileName = 255;

struct Segment {
  uint64_t start = 0;
  uint64_t end = 0;
  uint64_t data_length = 0;  // From `start`; the rest is slack.
  uint32_t crc32 = 0;        // For index and notes; else 0.

  friend bool operator==(const Segment&, const Segment&) = default;
};

// Blocks about to be inserted into the file, or just inserted: the size of the
// file tells which. Every bound of `at` or more then moves by `bytes`.
struct SegmentGrowth {
  uint64_t at = 0;
  uint64_t bytes = 0;
  uint64_t file_bytes = 0;  // Before.

  friend bool operator==(const SegmentGrowth&, const SegmentGrowth&) = default;
};

struct SegmentHead {
  uint64_t block_bytes = kSegmentBlockBytes;
  Segment index;
  Segment headers;
  Segment data;
  std::optional<Segment> notes;
  // The file beside this one that holds the data; empty: this one. Bounds of
  // `data` count from its start.
  std::string data_file;
  std::optional<SegmentGrowth> growth;

  friend bool operator==(const SegmentHead&, const SegmentHead&) = default;
};

// Rules S01 to S07, but for the bounds of data in a file of its own. `head`
// are the first kSegmentHeadBytes of the file, or all of it. Where blocks were
// being inserted, the result is what holds now, without `growth`.
Result<SegmentHead> ParseSegmentHead(std::span<const std::byte> head,
                                     uint64_t file_bytes);

// The layout section, from the length of its body on, and its checksum.
// `before` are the bytes of the file in front of it. Requires: the name of the
// data file is at most kMaxDataFileName long.
std::vector<std::byte> EncodeSegmentHead(const SegmentHead& head,
                                         std::span<const std::byte> before);

// What holds once the blocks are inserted.
SegmentHead Grown(SegmentHead head);

}  // namespace haulway::tensorizer
