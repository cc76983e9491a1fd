#include "load/shared_image.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "base/checked.h"
#include "base/cursor.h"
#include "base/encoder.h"

namespace haulway {

namespace {

constexpr std::string_view kMagic("HAULSHM\1", 8);
// Smallest encoded size of each item of the index.
constexpr uint64_t kFileBytes = 16;
constexpr uint64_t kRangeBytes = 16;
constexpr uint64_t kStorageBytes = 16;
constexpr uint64_t kEntryBytes = 4;

uint64_t IndexBytes(const std::vector<Recording::File>& files,
                    size_t storage_count, size_t entry_count) {
  uint64_t bytes = 4 + 4 + 8;
  for (const Recording::File& file : files) {
    bytes += kFileBytes + file.name.size();
    for (const auto& [offset, range] : file.ranges) {
      bytes += kRangeBytes + range.size();
    }
  }
  return bytes + storage_count * kStorageBytes + entry_count * kEntryBytes;
}

Status Wrong(std::string_view what, const ByteCursor& cursor) {
  return Status(Code::kCorrupt, what)
      .At(cursor.position())
      .In("the index of shared memory");
}

// Reads a count of items that take at least `each` bytes. Fails with kTruncated
// if that many items do not fit in the remaining bytes.
Result<uint32_t> Count(ByteCursor* cursor, uint64_t each, const char* what) {
  const uint32_t count = cursor->U32();
  if (!cursor->ok() || count > cursor->remaining() / each) {
    return Status(Code::kTruncated,
                  fmt::format("{} {} need more bytes than the {} that remain",
                              count, what, cursor->remaining()))
        .At(cursor->position())
        .In("the index of shared memory");
  }
  return count;
}

Result<ReplayedFile> ParseFile(ByteCursor* cursor) {
  ReplayedFile file;
  const uint32_t name_bytes = cursor->U32();
  file.name = cursor->Text(name_bytes);
  file.size = cursor->U64();
  HAULWAY_ASSIGN(const uint32_t ranges, Count(cursor, kRangeBytes, "ranges"));
  file.ranges.reserve(ranges);
  uint64_t end = 0;
  for (uint32_t i = 0; i < ranges; ++i) {
    const uint64_t offset = cursor->U64();
    const uint64_t length = cursor->U64();
    const auto bytes = cursor->Bytes(length);
    if (!cursor->ok()) return Wrong("a range ends past the index", *cursor);
    if (offset < end || !RangeFits(offset, length, file.size)) {
      return Wrong("a range overlaps another or ends past its file", *cursor);
    }
    end = offset + length;
    file.ranges.push_back({offset, bytes});
  }
  return file;
}

}  // namespace

std::vector<std::byte> EncodeSharedIndex(
    const std::vector<Recording::File>& files,
    std::span<const SharedRange> storages,
    const std::optional<std::vector<uint32_t>>& entries) {
  const size_t entry_count = entries.has_value() ? entries->size() : 0;
  std::vector<std::byte> index(IndexBytes(files, storages.size(), entry_count));
  ByteEncoder out(index);
  out.U32(files.size());
  for (const Recording::File& file : files) {
    out.U32(file.name.size());
    out.Text(file.name);
    out.U64(file.size);
    out.U32(file.ranges.size());
    for (const auto& [offset, bytes] : file.ranges) {
      out.U64(offset);
      out.U64(bytes.size());
      out.Bytes(bytes);
    }
  }
  out.U32(storages.size());
  for (const SharedRange& storage : storages) {
    out.U64(storage.offset);
    out.U64(storage.length);
  }
  out.U32(entries.has_value() ? 1 : 0);
  out.U32(entry_count);
  for (size_t i = 0; i < entry_count; ++i) out.U32((*entries)[i]);
  return index;
}

std::vector<std::byte> EncodeSharedHeader(uint64_t offset, uint64_t bytes) {
  std::vector<std::byte> header(kMagic.size() + 16);
  ByteEncoder out(header);
  out.Text(kMagic);
  out.U64(offset);
  out.U64(bytes);
  return header;
}

Result<SharedIndex> ParseSharedImage(std::span<const std::byte> image) {
  ByteCursor header(image);
  const std::string_view magic = header.Text(kMagic.size());
  const uint64_t index_offset = header.U64();
  const uint64_t index_bytes = header.U64();
  if (!header.ok() || image.size() < kSharedHeaderBytes) {
    return Status(Code::kTruncated,
                  fmt::format("shared memory needs {} bytes, {} remain",
                              kSharedHeaderBytes, image.size()))
        .At(0);
  }
  if (magic != kMagic) {
    return Status(Code::kCorrupt,
                  "shared memory holds no checkpoint of this version")
        .At(0);
  }
  if (index_offset < kSharedHeaderBytes ||
      !RangeFits(index_offset, index_bytes, image.size())) {
    return Status(Code::kCorrupt, "the index ends past the shared memory")
        .At(kMagic.size());
  }
  SharedIndex index;
  ByteCursor cursor(image.subspan(index_offset, index_bytes));
  HAULWAY_ASSIGN(const uint32_t files, Count(&cursor, kFileBytes, "files"));
  if (files == 0) return Wrong("no file", cursor);
  for (uint32_t i = 0; i < files; ++i) {
    HAULWAY_ASSIGN(ReplayedFile file, ParseFile(&cursor));
    index.files.push_back(std::move(file));
  }
  HAULWAY_ASSIGN(const uint32_t storages,
                 Count(&cursor, kStorageBytes, "storages"));
  index.storages.reserve(storages);
  for (uint32_t i = 0; i < storages; ++i) {
    const SharedRange range = {cursor.U64(), cursor.U64()};
    if (range.offset != kNotShared &&
        (range.offset < kSharedHeaderBytes ||
         !RangeFits(range.offset, range.length, index_offset))) {
      return Wrong("a storage ends past the shared memory", cursor);
    }
    index.storages.push_back(range);
  }
  const uint32_t some = cursor.U32();
  HAULWAY_ASSIGN(const uint32_t entries,
                 Count(&cursor, kEntryBytes, "entries"));
  if (some > 1 || (some == 0 && entries != 0)) {
    return Wrong("a choice of entries that is none", cursor);
  }
  if (some == 1) {
    index.entries.emplace();
    for (uint32_t i = 0; i < entries; ++i) {
      index.entries->push_back(cursor.U32());
    }
  }
  if (!cursor.ok() || cursor.remaining() != 0) {
    return Wrong("bytes after the entries", cursor);
  }
  return index;
}

}  // namespace haulway
