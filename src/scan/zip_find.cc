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

// How far back miniz looks for an end record: it reads blocks of 4096 bytes,
// each of which overlaps the next by 3 bytes, until a block begins 64 KiB
// before the end.
constexpr uint64_t kMinizBlock = 4096;
constexpr uint64_t kMinizStep = kMinizBlock - 3;
constexpr uint64_t kMinizTail =
    kMinizBlock +
    (zip::kLongestComment + zip::kEndBytes - kMinizBlock + kMinizStep - 1) /
        kMinizStep * kMinizStep;

// The fields of an end record that locate the directory.
struct Directory {
  uint64_t bytes = 0;
  uint64_t offset = 0;
};

Directory DirectoryOf(std::string_view end) {
  ByteCursor cursor(std::as_bytes(std::span(end)));
  cursor.Skip(12);
  const uint64_t bytes = cursor.U32();
  return {bytes, cursor.U32()};
}

Directory DirectoryOf64(std::string_view end64) {
  ByteCursor cursor(std::as_bytes(std::span(end64)));
  cursor.Skip(40);
  const uint64_t bytes = cursor.U64();
  return {bytes, cursor.U64()};
}

// Returns the offset of the first record in the directory at `at`; nullopt if
// there is no directory.
Result<std::optional<uint64_t>> FirstRecord(const ByteSource& source,
                                            uint64_t at) {
  if (at > source.size() || source.size() - at < zip::kDirectoryEntryBytes) {
    return std::optional<uint64_t>();
  }
  std::vector<std::byte> entry(zip::kDirectoryEntryBytes);
  HAULWAY_TRY(source.ReadAt(at, entry));
  if (!TextOf(entry).starts_with(kEntry)) return std::optional<uint64_t>();
  ByteCursor cursor(std::span<const std::byte>(entry).subspan(42));
  return std::optional<uint64_t>(cursor.U32());
}

// Finds the archive as _EndRecData() and ZipFile._RealGetContents() of Python's
// zipfile do. `text` is the end of the file, from byte `tail` on.
Result<std::optional<uint64_t>> FindForPython(const ByteSource& source,
                                              std::string_view text,
                                              uint64_t tail) {
  // The end record is exactly at the end without a comment; otherwise the last
  // signature counts.
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
  Directory directory = DirectoryOf(text.substr(at));
  uint64_t location = tail + at;
  if (at >= zip::kZip64LocatorBytes + zip::kZip64EndBytes) {
    const size_t locator = at - zip::kZip64LocatorBytes;
    const size_t end64 = locator - zip::kZip64EndBytes;
    if (text.substr(locator, kLocator.size()) == kLocator &&
        text.substr(end64, kEnd64.size()) == kEnd64) {
      directory = DirectoryOf64(text.substr(end64));
      location = tail + end64;
    }
  }
  if (directory.bytes > location ||
      directory.bytes < zip::kDirectoryEntryBytes) {
    return std::optional<uint64_t>();
  }
  const uint64_t begin = location - directory.bytes;
  HAULWAY_ASSIGN(auto first, FirstRecord(source, begin));
  // Data before the zip shifts all offsets.
  if (first.has_value() && begin >= directory.offset) {
    *first += begin - directory.offset;
  }
  return first;
}

// Finds the archive as mz_zip_reader_read_central_dir() of miniz does: the end
// record has the absolute offset of the directory, and the locator that of the
// zip64 end record, so there may be other bytes between them.
Result<std::optional<uint64_t>> FindForMiniz(const ByteSource& source,
                                             std::string_view text,
                                             uint64_t tail) {
  const size_t at = text.rfind(kEnd, text.size() - zip::kEndBytes);
  if (at == text.npos) return std::optional<uint64_t>();
  Directory directory = DirectoryOf(text.substr(at));
  std::vector<std::byte> end64(zip::kZip64EndBytes);
  if (tail + at >= zip::kZip64LocatorBytes) {
    std::vector<std::byte> locator(zip::kZip64LocatorBytes);
    HAULWAY_TRY(source.ReadAt(tail + at - zip::kZip64LocatorBytes, locator));
    ByteCursor cursor(locator);
    cursor.Skip(8);
    const uint64_t location = cursor.U64();
    if (TextOf(locator).starts_with(kLocator) && location <= source.size() &&
        source.size() - location >= end64.size()) {
      HAULWAY_TRY(source.ReadAt(location, end64));
      if (TextOf(end64).starts_with(kEnd64)) {
        directory = DirectoryOf64(TextOf(end64));
      }
    }
  }
  return FirstRecord(source, directory.offset);
}

}  // namespace

Result<std::vector<uint64_t>> FindZips(const ByteSource& source) {
  const uint64_t size = source.size();
  const uint64_t tail_bytes =
      std::min(size, std::max(kMinizTail, zip::kTailBytes));
  std::vector<uint64_t> found;
  if (tail_bytes < zip::kEndBytes) return found;
  std::vector<std::byte> bytes(tail_bytes);
  const uint64_t tail = size - tail_bytes;
  HAULWAY_TRY(source.ReadAt(tail, bytes));
  for (const auto find : {FindForPython, FindForMiniz}) {
    HAULWAY_ASSIGN(const auto first, find(source, TextOf(bytes), tail));
    if (first.has_value() && (found.empty() || found.back() != *first)) {
      found.push_back(*first);
    }
  }
  return found;
}

namespace {

// Returns whether the end records at `at` end an archive that began at `begin`.
// `tail` has `before` bytes that precede `at`, and then the end record.
bool EndsArchive(std::span<const std::byte> tail, size_t before, uint64_t begin,
                 uint64_t at) {
  ByteCursor end(tail.subspan(before));
  end.Skip(12);
  uint64_t bytes = end.U32();
  uint64_t offset = end.U32();
  if (end.U16() != 0 || !end.ok()) return false;  // The archive has a comment.
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
  // Bytes needed before a signature.
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
