// Design: a codec of index and headers; docs/formats/tensorizer.md lists the
// rules by number. Each parser reads the bytes through a bounded cursor, field
// by field in file order. When two fields describe the same fact, it compares
// them when it reads the second. Headers are compared with the index, because
// the reference trusts either one.
//
// Alternatives not taken: structs cast over the bytes, because fields are
// unaligned and lengths are untrusted; a table-driven parser, because the
// versions differ in rules more than in fields. One parser handles versions 1
// to 5, with the version as a condition, because most files in use have the
// middle versions.

#include "tensorizer/tensorizer_format.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "base/checked.h"
#include "base/cursor.h"
#include "base/text.h"
#include "tensorizer/tensorizer_dtype.h"
#include "tensorizer/tensorizer_name.h"

namespace haulway::tensorizer {

namespace {

constexpr uint32_t kTagShort = 1;
constexpr uint32_t kTagLong = 5;
constexpr uint64_t kSmallestHeader = 8 + 2 + 1 + 2 + 1 + 1 + 2 + 1 + 8;
constexpr uint8_t kHashCrc32 = 0;
constexpr uint8_t kHashSha256 = 1;

Status WrongEntry(std::string_view what) {
  return Status(Code::kCorrupt, what);
}

// An IndexParser reads the entries of an index one by one.
class IndexParser {
 public:
  IndexParser(std::span<const std::byte> bytes, const OpenOptions& options,
              const Preamble& preamble)
      : bytes_(bytes), cursor_(bytes), options_(options), preamble_(preamble) {}

  Result<TensorIndex> Parse() {
    index_.entries.reserve(preamble_.count);
    index_.dims.reserve(2 * preamble_.count);
    for (uint64_t i = 0; i < preamble_.count; ++i) {
      const size_t at = cursor_.position();
      IndexEntry entry;
      Status status = ParseEntry(&entry);
      if (!status.ok()) {
        return std::move(status)
            .At(preamble_.index_offset + at)
            .In(fmt::format("entry {} of the tensorizer index", i));
      }
      index_.entries.push_back(entry);
    }
    return std::move(index_);
  }

 private:
  Status ParseEntry(IndexEntry* entry) {
    const uint32_t tag = preamble_.tagged ? cursor_.U32() : kTagShort;
    const uint16_t name_bytes = cursor_.U16();
    entry->name = cursor_.Text(name_bytes);
    const uint8_t type = cursor_.U8();
    const size_t dtype_at = cursor_.position();
    const uint8_t dtype_bytes = cursor_.U8();
    const std::string_view dtype = cursor_.Text(dtype_bytes);
    entry->rank = cursor_.U8();
    entry->long_dims = tag == kTagLong;
    ByteCursor dims(
        cursor_.Bytes(uint64_t{entry->rank} * (entry->long_dims ? 8 : 4)));
    const size_t dims_end = cursor_.position();
    entry->header_offset = cursor_.U64();
    entry->data_offset = cursor_.U64();
    entry->data_bytes = cursor_.U64();
    if (!cursor_.ok()) {
      return Status(Code::kTruncated, "entry runs past the index");
    }
    if (tag != kTagShort && tag != kTagLong) {
      return WrongEntry(
          fmt::format("unknown version of an entry: expected 1 or 5, "
                      "found {}",
                      tag));
    }
    if (entry->name.empty()) return WrongEntry("name is empty");
    if (type > static_cast<uint8_t>(TensorType::kStateDict)) {
      return WrongEntry(
          fmt::format("unknown type of tensor: expected 0 to 2, found "
                      "{}",
                      type));
    }
    entry->type = static_cast<TensorType>(type);
    if (IsStructured(entry->name) && entry->type != TensorType::kStateDict) {
      return WrongEntry("name is a path, but the tensor is of no state dict");
    }
    HAULWAY_ASSIGN(const DTypeSpelling spelling, ParseDType(dtype));
    if (spelling.opaque && preamble_.version < 2) {
      return WrongEntry("dtype is one of version 2, in a file of version 1");
    }
    entry->dtype = spelling.dtype;
    entry->dtype_and_dims = bytes_.subspan(dtype_at, dims_end - dtype_at);
    HAULWAY_TRY(ParseDims(&dims, entry));
    return CheckLength(entry);
  }

  // Applies rule I07.
  Status ParseDims(ByteCursor* cursor, IndexEntry* entry) {
    if (entry->rank > options_.limits.max_rank) {
      return Status(Code::kLimit,
                    fmt::format("{} dimensions pass max_rank {}", entry->rank,
                                options_.limits.max_rank));
    }
    entry->first_dim = static_cast<uint32_t>(index_.dims.size());
    uint64_t bytes = ItemBytes(entry->dtype);
    bool overflows = false;
    bool is_empty = false;
    for (int i = 0; i < entry->rank; ++i) {
      const uint64_t dim = entry->long_dims ? cursor->U64() : cursor->U32();
      if (dim > INT64_MAX) overflows = true;
      if (dim == 0) is_empty = true;
      // Check the product even for an empty tensor, so that strides can be
      // computed.
      if (!CheckedMultiply(bytes, std::max<uint64_t>(dim, 1), &bytes) ||
          bytes > INT64_MAX) {
        overflows = true;
      }
      index_.dims.push_back(static_cast<int64_t>(dim));
    }
    if (overflows) return WrongEntry("shape overflows");
    entry->nbytes = is_empty ? 0 : bytes;
    return Status();
  }

  // Applies rule I08.
  Status CheckLength(IndexEntry* entry) const {
    entry->meta = entry->data_bytes == 0 && entry->nbytes != 0;
    if (entry->meta && preamble_.version < 4) {
      return WrongEntry("tensor has no data, which version 4 introduced");
    }
    if (!entry->meta && entry->data_bytes != entry->nbytes) {
      return WrongEntry(
          fmt::format("data length does not match the shape: expected "
                      "{}, found {}",
                      entry->nbytes, entry->data_bytes));
    }
    return Status();
  }

  const std::span<const std::byte> bytes_;
  ByteCursor cursor_;
  const OpenOptions& options_;
  const Preamble& preamble_;
  TensorIndex index_;
};

Status PastFile(const IndexEntry& entry, uint64_t file_bytes) {
  return Status(Code::kTruncated,
                fmt::format("data of {} bytes ends past the file: expected at "
                            "most {} bytes in all",
                            entry.data_bytes, file_bytes))
      .At(entry.data_offset);
}

Status InEntry(Status status, const IndexEntry& entry) {
  return std::move(status).In(fmt::format("index entry {}", Quote(entry.name)));
}

// Applies rule I10.
Status CheckInterleaved(const TensorIndex& index, uint64_t start,
                        uint64_t file_bytes) {
  uint64_t at = start;
  for (const IndexEntry& entry : index.entries) {
    if (entry.header_offset != at) {
      return InEntry(
          WrongEntry(fmt::format("header is not where the data before it "
                                 "ends: expected {}, found {}",
                                 at, entry.header_offset)),
          entry);
    }
    if (entry.data_offset > file_bytes || entry.data_offset < at ||
        !RangeFits(entry.data_offset, entry.data_bytes, file_bytes)) {
      return InEntry(PastFile(entry, file_bytes), entry);
    }
    if (entry.data_offset - at < kSmallestHeader) {
      return InEntry(WrongEntry(fmt::format("header of {} bytes is too short",
                                            entry.data_offset - at)),
                     entry);
    }
    at = entry.data_offset + entry.data_bytes;
  }
  return Status();
}

// Applies rule S08: what version 2 requires in addition to X04 and X05.
Status CheckSegments(const TensorIndex& index, const Preamble& preamble,
                     uint64_t file_bytes) {
  const SegmentHead& segments = *preamble.segments;
  const bool own_file = !segments.data_file.empty();
  uint64_t header = preamble.header_start;
  uint64_t data = preamble.data_start;
  for (const IndexEntry& entry : index.entries) {
    if (entry.header_offset < header ||
        !RangeFits(entry.header_offset, kSmallestHeader, preamble.header_end)) {
      return InEntry(WrongEntry(fmt::format(
                         "headers overlap or run past their "
                         "segment: expected {} to {}, found {}",
                         header, preamble.header_end, entry.header_offset)),
                     entry);
    }
    if (!RangeFits(entry.data_offset, entry.data_bytes, file_bytes)) {
      return InEntry(PastFile(entry, file_bytes), entry);
    }
    const uint64_t end = entry.data_offset + entry.data_bytes;
    if (entry.data_offset < data || end > preamble.data_end) {
      return InEntry(
          WrongEntry(fmt::format("data overlaps or runs past its "
                                 "segment: expected {} to {}, found {}",
                                 data, preamble.data_end, entry.data_offset)),
          entry);
    }
    const auto meets = [&](const Segment& segment) {
      return entry.data_offset < segment.end && segment.start < end;
    };
    if (!own_file && entry.data_bytes != 0 &&
        (meets(segments.index) || meets(segments.headers) ||
         (segments.notes.has_value() && meets(*segments.notes)))) {
      return InEntry(WrongEntry("data lies within another segment"), entry);
    }
    header = entry.header_offset + kSmallestHeader;
    data = end;
  }
  if (data == preamble.data_end) return Status();
  return WrongEntry(
             fmt::format("length of the data segment is wrong: expected {}, "
                         "found {}",
                         data - preamble.data_start, segments.data.data_length))
      .In("layout section");
}

// Applies rules X04 and X05.
Status CheckHeadersFirst(const TensorIndex& index, const Preamble& preamble,
                         uint64_t file_bytes) {
  const uint64_t first_header =
      preamble.layout == Layout::kSegments
          ? preamble.header_start
          : preamble.index_offset + preamble.index_bytes;
  uint64_t header = first_header;
  uint64_t data = preamble.data_start;
  for (const IndexEntry& entry : index.entries) {
    if (entry.header_offset < header) {
      return InEntry(
          WrongEntry(fmt::format("headers overlap: expected {} or more, "
                                 "found {}",
                                 header, entry.header_offset)),
          entry);
    }
    if (!RangeFits(entry.data_offset, entry.data_bytes, file_bytes)) {
      return InEntry(PastFile(entry, file_bytes), entry);
    }
    if (entry.data_offset < data) {
      return InEntry(
          WrongEntry(fmt::format("data overlaps: expected {} or more, "
                                 "found {}",
                                 data, entry.data_offset)),
          entry);
    }
    header = entry.header_offset + kSmallestHeader;
    data = entry.data_offset + entry.data_bytes;
  }
  if (index.entries.empty()) return Status();
  const IndexEntry& first = index.entries.front();
  if (header > first.data_offset) {
    return InEntry(
        WrongEntry(fmt::format("data lies within the headers: expected "
                               "{} or more, found {}",
                               header, first.data_offset)),
        first);
  }
  return Status();
}

// Applies rule F05. A scalar meta tensor is stored with an element that the
// total does not count, so the file is not refused for that.
Status CheckTotal(const TensorIndex& index, const Preamble& preamble) {
  uint64_t total = 0;
  uint64_t may_miss = 0;
  for (const IndexEntry& entry : index.entries) {
    // Cannot overflow: each tensor lies in the file, after the previous one.
    total += entry.data_bytes;
    if (entry.rank == 0 && preamble.version >= 4) may_miss += entry.data_bytes;
  }
  if (preamble.data_bytes <= total && total - preamble.data_bytes <= may_miss) {
    return Status();
  }
  return WrongEntry(
             fmt::format("data of all tensors is not as long as the file "
                         "header has it: expected {}, found {}",
                         preamble.data_bytes, total))
      .At(41)
      .In("tensorizer file header");
}

// A HeaderParser checks one tensor header field by field.
class HeaderParser {
 public:
  HeaderParser(std::span<const std::byte> bytes, const IndexEntry& entry,
               const Preamble& preamble, Strictness strictness)
      : bytes_(bytes),
        cursor_(bytes),
        entry_(entry),
        preamble_(preamble),
        strict_(strictness == Strictness::kStrict) {}

  Result<TensorHeader> Parse() {
    HAULWAY_TRY(CheckFields());
    HAULWAY_TRY(ParseHashes());
    if (preamble_.encrypted) HAULWAY_TRY(TakeCryptBlock());
    out_.crypt_end = cursor_.position();
    HAULWAY_TRY(CheckTail());
    if (!out_.crc32.has_value() && !out_.sha256.has_value() && strict_) {
      return WrongEntry("header has no hash").At(out_.hash_block);
    }
    return out_;
  }

 private:
  Status CheckFields() {
    const uint64_t length = cursor_.U64();
    if (length != bytes_.size()) {
      return WrongEntry(
                 fmt::format("header length is wrong: expected {}, found {}",
                             bytes_.size(), length))
          .At(0);
    }
    out_.module_index = cursor_.U16();
    const uint8_t type = cursor_.U8();
    const uint16_t name_bytes = cursor_.U16();
    const std::string_view name = cursor_.Text(name_bytes);
    const size_t dtype_at = cursor_.position();
    const auto rest = cursor_.Bytes(entry_.dtype_and_dims.size());
    if (!cursor_.ok() || type != static_cast<uint8_t>(entry_.type) ||
        name != entry_.name ||
        !std::ranges::equal(rest, entry_.dtype_and_dims)) {
      const bool named = cursor_.ok() && name == entry_.name;
      return WrongEntry(!named
                            ? "header and index give different names"
                            : "header and index give different types or shapes")
          .At(named ? dtype_at : 11);
    }
    return Status();
  }

  // Applies rule H04.
  Status ParseHashes() {
    out_.hash_block = cursor_.position();
    const uint16_t block_bytes = cursor_.U16();
    const auto block = cursor_.Bytes(block_bytes);
    if (!cursor_.ok()) {
      return Status(Code::kTruncated, "hash block runs past the header")
          .At(out_.hash_block);
    }
    out_.hash_block_end = cursor_.position();
    ByteCursor hashes(block);
    const uint8_t count = hashes.U8();
    for (int i = 0; i < count && hashes.ok(); ++i) {
      const uint8_t type = hashes.U8();
      const uint8_t size = hashes.U8();
      const size_t at = out_.hash_block + 2 + hashes.position();
      const auto value = hashes.Bytes(size);
      if (!hashes.ok()) break;
      if (type == kHashCrc32 && size == 4 && !out_.crc32.has_value()) {
        out_.crc32 = ByteCursor(value).U32();
        out_.crc32_value = at;
      } else if (type == kHashSha256 && size == 32 &&
                 !out_.sha256.has_value()) {
        std::ranges::copy(value, out_.sha256.emplace().begin());
        out_.sha256_value = at;
      } else {
        return WrongEntry(
                   fmt::format("hash of type {} and {} bytes is unknown, or "
                               "stands twice",
                               type, size))
            .At(at);
      }
    }
    if (!hashes.ok() || hashes.remaining() != 0) {
      return WrongEntry("hashes do not fill their block").At(out_.hash_block);
    }
    return Status();
  }

  // Applies rule H05. tensorizer_crypt_block.h parses the block's contents.
  Status TakeCryptBlock() {
    const size_t at = cursor_.position();
    const uint64_t length = cursor_.U64();
    out_.crypt = cursor_.Bytes(length);
    if (!cursor_.ok()) {
      return WrongEntry("crypt block is missing, or runs past the header")
          .At(at);
    }
    return Status();
  }

  // Applies rules H02, H03 and H06.
  Status CheckTail() {
    if (cursor_.remaining() < 8) {
      return Status(Code::kTruncated, "header ends before its data length")
          .At(cursor_.position());
    }
    const auto padding = cursor_.Bytes(cursor_.remaining() - 8);
    if (strict_ && std::ranges::any_of(padding, [](std::byte b) {
          return b != std::byte{0};
        })) {
      return WrongEntry("padding of the header is not zero").At(out_.crypt_end);
    }
    const uint64_t data_bytes = cursor_.U64();
    if (data_bytes != entry_.data_bytes) {
      return WrongEntry(
                 fmt::format("header and index give different data lengths: "
                             "expected {}, found {}",
                             entry_.data_bytes,
                             static_cast<int64_t>(data_bytes)))
          .At(bytes_.size() - 8);
    }
    return Status();
  }

  const std::span<const std::byte> bytes_;
  ByteCursor cursor_;
  const IndexEntry& entry_;
  const Preamble& preamble_;
  const bool strict_;
  TensorHeader out_;
};

}  // namespace

Result<TensorIndex> ParseIndex(std::span<const std::byte> bytes,
                               uint64_t file_bytes, const OpenOptions& options,
                               Preamble* preamble) {
  HAULWAY_ASSIGN(TensorIndex index,
                 IndexParser(bytes, options, *preamble).Parse());
  const uint64_t index_end = preamble->index_offset + preamble->index_bytes;

  if (preamble->layout == Layout::kSegments) {
    for (IndexEntry& entry : index.entries) {
      if (!CheckedAdd(entry.header_offset, preamble->header_start,
                      &entry.header_offset) ||
          !CheckedAdd(entry.data_offset, preamble->data_start,
                      &entry.data_offset)) {
        return InEntry(WrongEntry("offset overflows"), entry);
      }
    }
    HAULWAY_TRY(preamble->segments.has_value()
                    ? CheckSegments(index, *preamble, file_bytes)
                    : CheckHeadersFirst(index, *preamble, file_bytes));
  } else {
    Status status = CheckInterleaved(index, index_end, file_bytes);
    if (preamble->layout_open) {
      preamble->layout_open = false;
      if (!status.ok()) {
        preamble->layout = Layout::kHeadersFirst;
        preamble->hash_rule = HashRule::kWithoutHashes;
        status = CheckHeadersFirst(index, *preamble, file_bytes);
      } else {
        preamble->hash_rule = HashRule::kEither;
      }
    }
    HAULWAY_TRY(std::move(status));
  }
  if (options.strictness == Strictness::kStrict) {
    HAULWAY_TRY(CheckTotal(index, *preamble));
  }
  if (preamble->segments.has_value()) {
    index.end_mark = preamble->data_end;
    return index;
  }
  index.end_mark =
      index.entries.empty()
          ? std::max(index_end, preamble->data_start)
          : index.entries.back().data_offset + index.entries.back().data_bytes;
  return index;
}

Result<TensorHeader> ParseTensorHeader(std::span<const std::byte> bytes,
                                       const IndexEntry& entry,
                                       const Preamble& preamble,
                                       Strictness strictness) {
  return HeaderParser(bytes, entry, preamble, strictness).Parse();
}

std::vector<std::byte> HashedHeader(std::span<const std::byte> bytes,
                                    const TensorHeader& header, HashRule rule) {
  std::vector<std::byte> covered;
  covered.reserve(bytes.size());
  const auto add = [&](size_t begin, size_t end) {
    const auto part = bytes.subspan(begin, end - begin);
    covered.insert(covered.end(), part.begin(), part.end());
  };
  if (rule == HashRule::kWithoutHashes) {
    add(0, header.hash_block);
  } else {
    add(0, header.hash_block_end);
    const auto zero = [&](size_t at, size_t length) {
      if (at != 0) std::memset(covered.data() + at, 0, length);
    };
    zero(header.crc32_value, 4);
    zero(header.sha256_value, 32);
  }
  add(header.crypt_end, bytes.size());
  return covered;
}

}  // namespace haulway::tensorizer
