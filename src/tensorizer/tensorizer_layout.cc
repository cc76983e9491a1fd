#include "tensorizer/tensorizer_layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/checked.h"
#include "base/cursor.h"

namespace haulway::tensorizer {

namespace {

constexpr uint64_t kFlagsOffset = 9;
constexpr size_t kFlagBytes = 32;
constexpr uint64_t kUnusedOffset = 49;
constexpr uint32_t kNewestVersion = 5;
// A name of one byte, a dtype of one character, no dims: no valid entry is
// shorter.
constexpr uint64_t kSmallestEntry = 2 + 1 + 1 + 1 + 3 + 1 + 24;

Status WrongHeader(std::string_view what, uint64_t byte) {
  return Status(Code::kCorrupt, what).At(byte).In("tensorizer file header");
}

Status ParseFlags(std::span<const std::byte> bytes, Preamble* out) {
  ByteCursor cursor(bytes);
  out->flags = cursor.U64();
  uint64_t known = 0;
  if (out->version == 4) known = kFlagEncrypted;
  if (out->version == 5) known = kFlagEncrypted | kFlagTagged | kFlagSegments;
  const bool rest = std::ranges::any_of(
      bytes.subspan(8), [](std::byte b) { return b != std::byte{0}; });
  if ((out->flags & ~known) != 0 || rest) {
    return WrongHeader(
        fmt::format("unknown feature flags in version {}: expected "
                    "at most {}, found {}{}",
                    out->version, known & ~kFlagSegments, out->flags,
                    rest ? " and more" : ""),
        kFlagsOffset);
  }
  out->encrypted = out->version == 3 || (out->flags & kFlagEncrypted) != 0;
  out->tagged = (out->flags & kFlagTagged) != 0;
  return Status();
}

// Detects the layout, except where that needs the index.
void Detect(std::span<const std::byte> rest, Preamble* out) {
  if ((out->flags & kFlagSegments) != 0) {
    out->layout = Layout::kSegments;
    out->hash_rule = HashRule::kWithoutHashes;
    return;
  }
  if (out->version < 5 || out->tagged) return;
  ByteCursor cursor(rest);
  const uint8_t version = cursor.U8();
  const uint8_t entries = cursor.U8();
  const uint8_t tag = cursor.U8();
  if (cursor.ok() && out->index_bytes == kLayoutBodyBytes && version == 1 &&
      entries == 3 && tag == 1) {
    out->layout = Layout::kSegments;
    out->hash_rule = HashRule::kWithoutHashes;
    return;
  }
  const uint32_t first = ByteCursor(rest).U32();
  if (out->index_bytes == kReservedIndexBytes && (first == 1 || first == 5)) {
    out->tagged = true;  // The layout of PR #199.
    return;
  }
  out->layout_open = true;
}

// Applies rules X01 to X03.
Status ParseSegments(std::span<const std::byte> rest, uint64_t file_bytes,
                     Preamble* out) {
  ByteCursor cursor(rest);
  cursor.Skip(2);
  const uint8_t index_tag = cursor.U8();
  const uint64_t index_start = cursor.U64();
  const uint64_t index_end = cursor.U64();
  const uint8_t header_tag = cursor.U8();
  const uint64_t header_start = cursor.U64();
  const uint64_t header_end = cursor.U64();
  const uint8_t data_tag = cursor.U8();
  const uint64_t data_start = cursor.U64();
  const uint64_t content = cursor.U64();
  if (!cursor.ok()) {
    return Status(Code::kTruncated,
                  fmt::format("layout section needs {} bytes, {} remain",
                              kLayoutBodyBytes + 8, rest.size()))
        .At(kIndexOffset)
        .In("tensorizer file header");
  }
  if (index_tag != 1 || header_tag != 2 || data_tag != 3) {
    return WrongHeader(
        fmt::format("segments are of wrong kinds: expected 1, 2, 3, "
                    "found {}, {}, {}",
                    index_tag, header_tag, data_tag),
        kIndexOffset);
  }
  if (index_start != kSegmentIndexStart || index_end < index_start ||
      index_end != header_start || header_end < header_start ||
      header_end != data_start) {
    return WrongHeader("segments do not follow one another", kIndexOffset);
  }
  if (data_start > file_bytes) {
    return Status(Code::kTruncated,
                  fmt::format("file ends in its segments: expected {} bytes or "
                              "more, found {}",
                              data_start, file_bytes))
        .At(file_bytes)
        .In("tensorizer file header");
  }
  if (index_end - index_start < 8 || content > index_end - index_start - 8) {
    return WrongHeader(
        fmt::format("index of {} bytes does not fit its segment", content),
        kSegmentIndexStart);
  }
  out->index_offset = kSegmentIndexStart + 8;
  out->index_bytes = content;
  out->header_start = header_start;
  out->header_end = data_start;
  out->data_start = data_start;
  return Status();
}

// Parses the head of version 2.
Status TakeSegments(std::span<const std::byte> head, uint64_t file_bytes,
                    Preamble* out) {
  HAULWAY_ASSIGN(out->segments, ParseSegmentHead(head, file_bytes));
  const SegmentHead& segments = *out->segments;
  out->index_offset = segments.index.start;
  out->index_bytes = segments.index.data_length;
  out->header_start = segments.headers.start;
  out->header_end = segments.headers.start + segments.headers.data_length;
  out->data_start = segments.data.start;
  out->data_end = segments.data.start + segments.data.data_length;
  return Status();
}

}  // namespace

std::string_view Name(Layout layout) {
  switch (layout) {
    case Layout::kInterleaved:
      return "interleaved";
    case Layout::kHeadersFirst:
      return "headers-first";
    case Layout::kSegments:
      return "segments";
  }
  return "unknown";
}

bool IsTensorizer(std::span<const std::byte> head) {
  return head.size() >= kMagic.size() &&
         std::memcmp(head.data(), kMagic.data(), kMagic.size()) == 0;
}

Result<Preamble> ParsePreamble(std::span<const std::byte> head,
                               uint64_t file_bytes,
                               const OpenOptions& options) {
  if (!IsTensorizer(head)) return WrongHeader("not a tensorizer file", 0);
  if (head.size() < kIndexOffset) {
    return Status(Code::kTruncated,
                  fmt::format("file header needs {} bytes, {} remain",
                              kIndexOffset, head.size()))
        .At(0)
        .In("tensorizer file header");
  }
  ByteCursor cursor(head);
  cursor.Skip(kMagic.size());
  Preamble out;
  out.version = cursor.U32();
  if (out.version < 1 || out.version > kNewestVersion) {
    return Status(Code::kUnsupported,
                  fmt::format("version of the tensorizer file is unknown: "
                              "expected 1 to {}, found {}",
                              kNewestVersion, out.version))
        .At(kMagic.size())
        .In("tensorizer file header");
  }
  HAULWAY_TRY(ParseFlags(cursor.Bytes(kFlagBytes), &out));
  out.data_bytes = cursor.U64();
  const uint64_t unused = cursor.U64();
  out.count = cursor.U64();
  out.index_bytes = cursor.U64();
  if (unused != 0 && options.strictness == Strictness::kStrict) {
    return WrongHeader(fmt::format("unused field is not zero: {}", unused),
                       kUnusedOffset);
  }
  const auto rest = head.subspan(kIndexOffset);
  Detect(rest, &out);
  if ((out.flags & kFlagSegments) != 0) {
    HAULWAY_TRY(TakeSegments(head, file_bytes, &out));
  } else if (out.layout == Layout::kSegments) {
    HAULWAY_TRY(ParseSegments(rest, file_bytes, &out));
  }
  if (out.index_bytes > options.limits.max_directory_bytes) {
    return Status(
               Code::kLimit,
               fmt::format("index of {} bytes passes max_directory_bytes "
                           "{}",
                           out.index_bytes, options.limits.max_directory_bytes))
        .At(kLengthOffset)
        .In("tensorizer file header");
  }
  if (!RangeFits(out.index_offset, out.index_bytes, file_bytes)) {
    return Status(
               Code::kTruncated,
               fmt::format("index needs {} bytes, {} remain", out.index_bytes,
                           file_bytes - std::min(out.index_offset, file_bytes)))
        .At(out.index_offset)
        .In("tensorizer file header");
  }
  if (out.count > options.limits.max_tensors) {
    return Status(Code::kLimit,
                  fmt::format("{} tensors pass max_tensors {}", out.count,
                              options.limits.max_tensors))
        .In("tensorizer file header");
  }
  if (out.count > out.index_bytes / kSmallestEntry) {
    return WrongHeader(fmt::format("{} tensors do not fit an index of {} bytes",
                                   out.count, out.index_bytes),
                       57);
  }
  return out;
}

}  // namespace haulway::tensorizer
