// Design: the layout section is a list of tagged fields, each with a length,
// and a CRC-32 over all of it. It is in the first 512 bytes of the file: one
// sector, which a disk writes completely or not at all, so writing it makes an
// edit take effect. A reader stops at a tag that it does not know, unless the
// tag is marked as optional. Bounds are checked against the file and one
// another before any is used.
//
// Alternative not taken: two heads that are written in turn, as databases do;
// the reader of PR #170 looks at one place only. While blocks are being
// inserted the head says so, and the size of the file tells whether an
// interruption came before or after the insertion.

#include "tensorizer/segment_head.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <string_view>
#include <utility>

#include "base/checked.h"
#include "base/cursor.h"
#include "base/digest.h"
#include "base/text.h"
#include "tensorizer/byte_writer.h"
#include "tensorizer/tensorizer_layout.h"

namespace haulway::tensorizer {

namespace {

constexpr uint8_t kLayoutVersion = 2;
constexpr uint8_t kTagIndex = 1;
constexpr uint8_t kTagHeaders = 2;
constexpr uint8_t kTagData = 3;
constexpr uint8_t kTagNotes = 4;
constexpr uint8_t kTagDataFile = 5;
constexpr uint8_t kTagGrowth = 6;
constexpr uint8_t kTagBlock = 7;
// Flag of tags that an old reader may ignore.
constexpr uint8_t kTagOptional = 0x80;
constexpr uint64_t kChecksumBytes = 4;

constexpr std::string_view kPart = "layout section";

Status Wrong(std::string_view what, uint64_t byte) {
  return Status(Code::kCorrupt, what).At(byte).In(kPart);
}

class Parser {
 public:
  Parser(std::span<const std::byte> head, uint64_t file_bytes)
      : head_(head), file_bytes_(file_bytes) {}

  Result<SegmentHead> Parse() {
    HAULWAY_ASSIGN(const auto body, CheckedBody());
    ByteCursor cursor(body);
    const uint8_t version = cursor.U8();
    const uint8_t entries = cursor.U8();
    if (version != kLayoutVersion) {
      return Status(Code::kUnsupported,
                    fmt::format("version of the layout is unknown: expected "
                                "{}, found {}",
                                kLayoutVersion, version))
          .At(kIndexOffset)
          .In(kPart);
    }
    for (int i = 0; i < entries; ++i) {
      const uint64_t at = kIndexOffset + cursor.position();
      const uint8_t tag = cursor.U8();
      const uint16_t length = cursor.U16();
      const auto fields = cursor.Bytes(length);
      if (!cursor.ok()) return Wrong("entry runs past the section", at);
      HAULWAY_TRY(TakeEntry(tag, fields, at));
    }
    if (cursor.remaining() != 0) {
      return Wrong("entries do not fill the section",
                   kIndexOffset + cursor.position());
    }
    for (const uint8_t tag : {kTagIndex, kTagHeaders, kTagData, kTagBlock}) {
      if (!seen_[tag]) {
        return Wrong(fmt::format("entry {} is missing", tag), kIndexOffset);
      }
    }
    HAULWAY_TRY(Settle());
    HAULWAY_TRY(CheckBounds());
    return std::move(out_);
  }

 private:
  // Applies rule S01: the body is complete, its checksum matches, nothing
  // follows it.
  Result<std::span<const std::byte>> CheckedBody() const {
    ByteCursor cursor(head_);
    cursor.Skip(kLengthOffset);
    const uint64_t length = cursor.U64();
    if (!cursor.ok() || head_.size() < kSegmentHeadBytes) {
      return Status(Code::kTruncated,
                    fmt::format("head needs {} bytes, {} remain",
                                kSegmentHeadBytes, head_.size()))
          .At(0)
          .In(kPart);
    }
    if (length < 2 + kChecksumBytes ||
        length > kSegmentHeadBytes - kIndexOffset) {
      return Wrong(fmt::format("length is out of range: expected {} to {}, "
                               "found {}",
                               2 + kChecksumBytes,
                               kSegmentHeadBytes - kIndexOffset, length),
                   kLengthOffset);
    }
    const uint64_t checksum_at = kIndexOffset + length - kChecksumBytes;
    const uint32_t found = Crc32(0, head_.subspan(0, checksum_at));
    const uint32_t stored = ByteCursor(head_.subspan(checksum_at)).U32();
    if (found != stored) {
      return Status(Code::kMismatch,
                    fmt::format("checksum of the head is wrong: expected "
                                "{:08x}, found {:08x}",
                                stored, found))
          .At(checksum_at)
          .In(kPart);
    }
    const auto rest = head_.subspan(kIndexOffset + length,
                                    kSegmentHeadBytes - kIndexOffset - length);
    if (std::ranges::any_of(rest,
                            [](std::byte b) { return b != std::byte{0}; })) {
      return Wrong("bytes after the section are not zero",
                   kIndexOffset + length);
    }
    return head_.subspan(kIndexOffset, length - kChecksumBytes);
  }

  // Applies rules S02 and S03.
  Status TakeEntry(uint8_t tag, std::span<const std::byte> fields,
                   uint64_t at) {
    if (seen_[tag]) return Wrong(fmt::format("entry {} stands twice", tag), at);
    seen_[tag] = true;
    ByteCursor cursor(fields);
    switch (tag) {
      case kTagIndex:
        out_.index = TakeSegment(&cursor);
        break;
      case kTagHeaders:
        out_.headers = TakeSegment(&cursor);
        break;
      case kTagData:
        out_.data = TakeSegment(&cursor);
        break;
      case kTagNotes:
        out_.notes = TakeSegment(&cursor);
        break;
      case kTagDataFile:
        out_.data_file = cursor.Text(fields.size());
        if (out_.data_file.empty() || !IsUtf8(out_.data_file)) {
          return Wrong("name of the data file is empty or not UTF-8", at);
        }
        break;
      case kTagGrowth: {
        SegmentGrowth& growth = out_.growth.emplace();
        growth.at = cursor.U64();
        growth.bytes = cursor.U64();
        growth.file_bytes = cursor.U64();
        break;
      }
      case kTagBlock:
        out_.block_bytes = cursor.U32();
        break;
      default:
        if ((tag & kTagOptional) != 0) return Status();
        return Status(Code::kUnsupported,
                      fmt::format("entry of the unknown kind {}", tag))
            .At(at)
            .In(kPart);
    }
    if (!cursor.ok() || cursor.remaining() != 0) {
      return Wrong(fmt::format("entry {} has a wrong length", tag), at);
    }
    return Status();
  }

  static Segment TakeSegment(ByteCursor* cursor) {
    Segment segment;
    segment.start = cursor->U64();
    segment.end = cursor->U64();
    segment.data_length = cursor->U64();
    segment.crc32 = cursor->U32();
    return segment;
  }

  // Applies rule S07.
  Status Settle() {
    if (!out_.growth.has_value()) return Status();
    const SegmentGrowth growth = *out_.growth;
    uint64_t after = 0;
    // An insertion past the start of the data would move only part of it.
    if (growth.bytes == 0 || growth.at == 0 || growth.at > growth.file_bytes ||
        (out_.data_file.empty() && growth.at > out_.data.start) ||
        !CheckedAdd(growth.file_bytes, growth.bytes, &after) ||
        after > INT64_MAX) {
      return Wrong("blocks to insert are out of range", kIndexOffset);
    }
    if (file_bytes_ == after) {
      for (const Segment* segment :
           {&out_.index, &out_.headers, &out_.data,
            out_.notes.has_value() ? &*out_.notes : nullptr}) {
        if (segment != nullptr && segment->end > INT64_MAX) {
          return Wrong("segment is out of range", kIndexOffset);
        }
      }
      out_ = Grown(std::move(out_));
      return Status();
    }
    if (file_bytes_ != growth.file_bytes) {
      return Status(
                 file_bytes_ < growth.file_bytes ? Code::kTruncated
                                                 : Code::kCorrupt,
                 fmt::format("file that was growing has a wrong size: expected "
                             "{} or {}, found {}",
                             growth.file_bytes, after, file_bytes_))
          .In(kPart);
    }
    out_.growth.reset();
    return Status();
  }

  // Applies rules S04 to S06.
  Status CheckBounds() const {
    const uint64_t block = out_.block_bytes;
    if (!std::has_single_bit(block) || block < kSegmentHeadBytes ||
        block > kMaxSegmentBlockBytes) {
      return Wrong(fmt::format("block of {} bytes is out of range", block),
                   kIndexOffset);
    }
    HAULWAY_TRY(CheckSegment("index", out_.index, block));
    HAULWAY_TRY(CheckSegment("headers", out_.headers, block));
    HAULWAY_TRY(CheckApart(out_.index, out_.headers));
    if (out_.notes.has_value()) {
      HAULWAY_TRY(CheckSegment("notes", *out_.notes, block));
      HAULWAY_TRY(CheckApart(*out_.notes, out_.index));
      HAULWAY_TRY(CheckApart(*out_.notes, out_.headers));
    }
    const Segment& data = out_.data;
    if (data.start % block != 0 || data.end < data.start ||
        data.data_length > data.end - data.start ||
        (out_.data_file.empty() && data.start < block)) {
      return Wrong("data segment has wrong bounds", kIndexOffset);
    }
    if (out_.data_file.empty() && data.end > file_bytes_) {
      return PastFile("data", data);
    }
    return Status();
  }

  Status CheckSegment(std::string_view name, const Segment& segment,
                      uint64_t block) const {
    if (segment.start < block || segment.start % block != 0 ||
        segment.end % block != 0 || segment.end < segment.start ||
        segment.data_length > segment.end - segment.start) {
      return Wrong(fmt::format("{} segment has wrong bounds", name),
                   kIndexOffset);
    }
    // The file may end before the last block does.
    if (segment.start > file_bytes_ ||
        segment.data_length > file_bytes_ - segment.start) {
      return PastFile(name, segment);
    }
    return Status();
  }

  Status PastFile(std::string_view name, const Segment& segment) const {
    return Status(Code::kTruncated,
                  fmt::format("{} segment ends past the file: expected at "
                              "most {}, found {}",
                              name, file_bytes_, segment.end))
        .At(file_bytes_)
        .In(kPart);
  }

  static Status CheckApart(const Segment& a, const Segment& b) {
    if (a.end <= b.start || b.end <= a.start) return Status();
    return Wrong("segments overlap", kIndexOffset);
  }

  const std::span<const std::byte> head_;
  const uint64_t file_bytes_;
  std::array<bool, 256> seen_{};
  SegmentHead out_;
};

void WriteSegment(uint8_t tag, const Segment& segment, ByteWriter* out) {
  out->U8(tag);
  out->U16(8 + 8 + 8 + 4);
  out->U64(segment.start);
  out->U64(segment.end);
  out->U64(segment.data_length);
  out->U32(segment.crc32);
}

}  // namespace

Result<SegmentHead> ParseSegmentHead(std::span<const std::byte> head,
                                     uint64_t file_bytes) {
  return Parser(
             head.subspan(0, std::min<size_t>(head.size(), kSegmentHeadBytes)),
             file_bytes)
      .Parse();
}

std::vector<std::byte> EncodeSegmentHead(const SegmentHead& head,
                                         std::span<const std::byte> before) {
  std::vector<std::byte> bytes;
  ByteWriter out(&bytes);
  const size_t length_at = out.Reserve64();
  out.U8(kLayoutVersion);
  out.U8(static_cast<uint8_t>(4 + (head.notes.has_value() ? 1 : 0) +
                              (head.data_file.empty() ? 0 : 1) +
                              (head.growth.has_value() ? 1 : 0)));
  WriteSegment(kTagIndex, head.index, &out);
  WriteSegment(kTagHeaders, head.headers, &out);
  WriteSegment(kTagData, head.data, &out);
  out.U8(kTagBlock);
  out.U16(4);
  out.U32(static_cast<uint32_t>(head.block_bytes));
  if (head.notes.has_value()) WriteSegment(kTagNotes, *head.notes, &out);
  if (!head.data_file.empty()) {
    out.U8(kTagDataFile);
    out.U16(static_cast<uint16_t>(head.data_file.size()));
    out.Text(head.data_file);
  }
  if (head.growth.has_value()) {
    out.U8(kTagGrowth);
    out.U16(3 * 8);
    out.U64(head.growth->at);
    out.U64(head.growth->bytes);
    out.U64(head.growth->file_bytes);
  }
  const uint64_t length = bytes.size() - length_at + kChecksumBytes;
  std::vector<std::byte> number;
  ByteWriter(&number).U64(length);
  std::ranges::copy(number, bytes.begin());
  ByteWriter(&bytes).U32(Crc32(Crc32(0, before), bytes));
  return bytes;
}

SegmentHead Grown(SegmentHead head) {
  const SegmentGrowth growth = *std::exchange(head.growth, std::nullopt);
  const auto move = [&](Segment* segment) {
    if (segment->start >= growth.at) segment->start += growth.bytes;
    if (segment->end >= growth.at) segment->end += growth.bytes;
  };
  move(&head.index);
  move(&head.headers);
  if (head.notes.has_value()) move(&*head.notes);
  if (head.data_file.empty()) move(&head.data);
  return head;
}

}  // namespace haulway::tensorizer
