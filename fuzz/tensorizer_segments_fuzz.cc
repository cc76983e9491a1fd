// Property: a file with correct checksums is opened or refused, whatever its
// layout section, index, headers and notes contain. An opened file's parts lie
// within the file, and its tensors can be read. A parsed head is encoded to
// bytes that parse to the same head, and notes are encoded to the same bytes.

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/digest.h"
#include "haulway/checkpoint.h"
#include "tensorizer/segment_head.h"
#include "tensorizer/segment_notes.h"
#include "tensorizer/tensorizer_layout.h"
#include "tensorizer/tensorizer_reader.h"

namespace {

using namespace haulway;
using namespace haulway::tensorizer;

void Require(bool holds) {
  if (!holds) abort();
}

void Store(std::string* file, size_t at, uint64_t value, size_t bytes) {
  if (at + bytes <= file->size()) std::memcpy(file->data() + at, &value, bytes);
}

std::span<const std::byte> Bytes(const std::string& file) {
  return std::as_bytes(std::span(file));
}

// Corrects the checksum of the head.
void Seal(std::string* file) {
  if (file->size() < kSegmentHeadBytes) return;
  uint64_t length = 0;
  std::memcpy(&length, file->data() + kLengthOffset, 8);
  if (length < 6 || length > kSegmentHeadBytes - kIndexOffset) return;
  const size_t at = kIndexOffset + length - 4;
  Store(file, at, Crc32(0, Bytes(*file).subspan(0, at)), 4);
}

void CheckHead(const std::string& file, const SegmentHead& head) {
  if (head.data_file.size() > kMaxDataFileName) return;
  std::string again = file.substr(0, kLengthOffset);
  const auto section = EncodeSegmentHead(head, Bytes(again));
  again.append(reinterpret_cast<const char*>(section.data()), section.size());
  again.resize(kSegmentHeadBytes);
  const auto parsed = ParseSegmentHead(Bytes(again), file.size());
  Require(parsed.ok() && *parsed == head);
}

// Corrects the checksums of index and notes.
void SealContents(std::string* file, SegmentHead head) {
  const auto sum = [&](Segment* segment) {
    if (segment->data_length > file->size()) return;
    segment->crc32 =
        Crc32(0, Bytes(*file).subspan(segment->start, segment->data_length));
  };
  sum(&head.index);
  if (head.notes.has_value()) sum(&*head.notes);
  const auto section =
      EncodeSegmentHead(head, Bytes(*file).subspan(0, kLengthOffset));
  if (kLengthOffset + section.size() > kSegmentHeadBytes) return;
  std::memset(file->data() + kLengthOffset, 0,
              kSegmentHeadBytes - kLengthOffset);
  std::memcpy(file->data() + kLengthOffset, section.data(), section.size());
}

void Walk(const std::string& file, Strictness strictness) {
  OpenOptions options;
  options.strictness = strictness;
  options.limits.max_kdf_operations = 1;
  const auto opened = Reader::Open(MakeMemorySource(Bytes(file)), options);
  if (!opened.ok()) {
    Require(!opened.status().message().empty());
    return;
  }
  const Reader& reader = **opened;
  const uint64_t size = reader.source()->size();
  for (const StorageInfo& storage : reader.index().storages) {
    Require(storage.offset <= size);
    Require(storage.stored_bytes <= size - storage.offset);
    std::vector<std::byte> bytes(storage.stored_bytes);
    Require(reader.source()->ReadAt(storage.offset, bytes).ok());
  }
  for (uint32_t row = 0; row < reader.index().storages.size(); ++row) {
    (void)reader.Digests(row, {}, {});
  }
}

void WalkNotes(std::span<const std::byte> bytes) {
  const auto notes = ParseNotes(bytes, ParseLimits());
  if (!notes.ok()) return;
  const auto encoded = EncodeNotes(*notes);
  Require(encoded.ok() && std::ranges::equal(*encoded, bytes));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 8) return 0;
  std::string file(reinterpret_cast<const char*>(data), size);
  WalkNotes(Bytes(file));
  std::memcpy(file.data(), kMagic.data(), kMagic.size());
  Store(&file, 5, 5, 4);
  Store(&file, 9, 0, 8);
  Store(&file, 9, kFlagSegments | (file.back() & 3u), 8);
  Seal(&file);
  const auto head = ParseSegmentHead(Bytes(file), file.size());
  if (!head.ok()) {
    Require(!head.status().message().empty());
    return 0;
  }
  CheckHead(file, *head);
  SealContents(&file, *head);
  Walk(file, Strictness::kStrict);
  Walk(file, Strictness::kLenient);
  return 0;
}
