#include "scan/zip_find.h"

#include <algorithm>
#include <span>
#include <string_view>
#include <vector>

#include "base/cursor.h"
#include "scan/byte_window.h"
#include "zip/zip_format.h"

namespace haulway::scan {

namespace {

constexpr std::string_view kEnd = "PK\x05\x06";
constexpr std::string_view kLocator = "PK\x06\x07";
constexpr std::string_view kEnd64 = "PK\x06\x06";
constexpr std::string_view kNoComment("\0\0", 2);
constexpr std::string_view kEntry = "PK\x01\x02";

}  // namespace

// As _EndRecData() and ZipFile._RealGetContents() of Python's zipfile.
Result<std::optional<uint64_t>> FindZip(const ByteSource& source) {
  const uint64_t size = source.size();
  const uint64_t tail_bytes = std::min(size, zip::kTailBytes);
  if (tail_bytes < zip::kEndBytes) return std::optional<uint64_t>();
  std::vector<std::byte> bytes(tail_bytes);
  const uint64_t tail = size - tail_bytes;
  HAULWAY_TRY(source.ReadAt(tail, bytes));
  const std::string_view text = TextOf(bytes);
  // Exactly at the end with no comment, or else the last signature there is.
  size_t at = text.size() - zip::kEndBytes;
  if (text.substr(at, kEnd.size()) != kEnd || !text.ends_with(kNoComment)) {
    const size_t window = std::min<size_t>(
        text.size(), zip::kLongestComment + 1 + zip::kEndBytes);
    at = text.rfind(kEnd);
    if (at == text.npos || at < text.size() - window ||
        text.size() - at < zip::kEndBytes) {
      return std::optional<uint64_t>();
    }
  }
  ByteCursor end(std::span<const std::byte>(bytes).subspan(at));
  end.Skip(12);
  uint64_t directory_bytes = end.U32();
  uint64_t directory_offset = end.U32();
  uint64_t location = tail + at;
  if (at >= zip::kZip64LocatorBytes + zip::kZip64EndBytes) {
    const size_t locator = at - zip::kZip64LocatorBytes;
    const size_t end64 = locator - zip::kZip64EndBytes;
    if (text.substr(locator, kLocator.size()) == kLocator &&
        text.substr(end64, kEnd64.size()) == kEnd64) {
      ByteCursor wide(std::span<const std::byte>(bytes).subspan(end64));
      wide.Skip(40);
      directory_bytes = wide.U64();
      directory_offset = wide.U64();
      location = tail + end64;
    }
  }
  if (directory_bytes > location ||
      directory_bytes < zip::kDirectoryEntryBytes) {
    return std::optional<uint64_t>();
  }
  const uint64_t directory = location - directory_bytes;
  std::vector<std::byte> entry(zip::kDirectoryEntryBytes);
  HAULWAY_TRY(source.ReadAt(directory, entry));
  if (!TextOf(entry).starts_with(kEntry)) return std::optional<uint64_t>();
  ByteCursor cursor(std::span<const std::byte>(entry).subspan(42));
  const uint64_t header = cursor.U32();
  // What stands before the zip moves all of it.
  const uint64_t moved =
      directory >= directory_offset ? directory - directory_offset : 0;
  return std::optional<uint64_t>(moved + header);
}

namespace {

// Whether end records that end an archive which began at `begin` stand at
// `at`, where `tail` is what precedes `at` and its end record.
bool EndsArchive(std::span<const std::byte> tail, size_t before, uint64_t begin,
                 uint64_t at) {
  ByteCursor end(tail.subspan(before));
  end.Skip(12);
  uint64_t bytes = end.U32();
  uint64_t offset = end.U32();
  if (end.U16() != 0 || !end.ok()) return false;  // A comment.
  uint64_t location = at;
  constexpr uint64_t kWide = zip::kZip64LocatorBytes + zip::kZip64EndBytes;
  const std::string_view text = TextOf(tail);
  if (before >= kWide && text.substr(before - kWide, kEnd64.size()) == kEnd64) {
    ByteCursor wide(tail.subspan(before - kWide));
    wide.Skip(40);
    bytes = wide.U64();
    offset = wide.U64();
    location -= kWide;
  }
  return location >= begin && bytes <= location - begin &&
         offset == location - begin - bytes;
}

}  // namespace

Result<std::vector<uint64_t>> ZipsInARow(const ByteSource& source) {
  constexpr uint64_t kChunk = kMiB;
  // What may have to be seen before and behind a signature.
  constexpr uint64_t kBefore = zip::kZip64LocatorBytes + zip::kZip64EndBytes;
  std::vector<uint64_t> ends;
  std::vector<std::byte> bytes;
  uint64_t begin = 0;
  for (uint64_t at = 0; at < source.size(); at += kChunk) {
    const uint64_t first = at - std::min(at, kBefore);
    const uint64_t last =
        at + std::min(kChunk + zip::kEndBytes, source.size() - at);
    bytes.resize(last - first);
    HAULWAY_TRY(source.ReadAt(first, bytes));
    const std::string_view text = TextOf(bytes);
    for (size_t i = text.find(kEnd, at - first); i != text.npos;
         i = text.find(kEnd, i + 1)) {
      if (first + i >= at + kChunk || text.size() - i < zip::kEndBytes) break;
      if (!EndsArchive(bytes, i, begin, first + i)) continue;
      begin = first + i + zip::kEndBytes;
      ends.push_back(begin);
    }
  }
  if (begin != source.size()) ends.clear();
  return ends;
}

}  // namespace haulway::scan
