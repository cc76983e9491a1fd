// Design: one request reads the end of the file, which mostly contains the
// directory too. Entries are views of a copy of it. Payload offsets are
// computed by the writer's own rule (ComputeOffsets()) and checked against the
// directory; otherwise they are read from the local headers, many with one
// vectored read. Names are looked up in a hash table; only names with capital
// letters are also stored in lower case.
//
// Alternative not taken: read each local header, as other zip readers do. That
// takes a request per record before the first tensor is known. The directory is
// never a view of a mapping, because the file's owner may truncate the file
// while names are in use.

#include "zip/zip_reader.h"

#include <fmt/format.h>
#include <libdeflate.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <memory>
#include <numeric>
#include <utility>

#include "base/ascii.h"
#include "base/checked.h"
#include "base/text.h"
#include "haulway/archive.h"

namespace haulway::zip {

namespace {

constexpr std::string_view kPlace = "zip directory";

bool IsUpper(char c) { return c >= 'A' && c <= 'Z'; }

// Headers reads the header bytes of many records at once.
class Headers {
 public:
  void Add(uint64_t offset, uint64_t length) {
    places_.push_back({offset, length, total_});
    total_ += length;
  }
  Status Read(const ByteSource& source) {
    bytes_.resize(total_);
    std::vector<ReadRequest> requests;
    requests.reserve(places_.size());
    for (const Place& place : places_) {
      requests.push_back(
          {place.offset, std::span(bytes_).subspan(place.at, place.length)});
    }
    return source.ReadMany(requests);
  }
  std::span<const std::byte> operator[](size_t i) const {
    return std::span(bytes_).subspan(places_[i].at, places_[i].length);
  }

 private:
  struct Place {
    uint64_t offset;
    uint64_t length;
    uint64_t at;
  };
  std::vector<Place> places_;
  uint64_t total_ = 0;
  std::vector<std::byte> bytes_;
};

}  // namespace

Result<std::unique_ptr<ZipReader>> ZipReader::Open(
    std::shared_ptr<const ByteSource> source, Strictness strictness,
    const ParseLimits& limits, NameRule names) {
  std::unique_ptr<ZipReader> reader(
      new ZipReader(std::move(source), strictness, limits));
  Status status = reader->ReadDirectory(names);
  if (status.ok()) status = reader->CheckPositions();
  if (status.ok()) status = reader->IndexNames(names);
  if (!status.ok()) return std::move(status).In(kPlace);
  return reader;
}

Status ZipReader::ReadDirectory(NameRule names) {
  const uint64_t size = source_->size();
  const uint64_t tail_bytes = std::min(size, kTailBytes);
  // Copy even from a mapping, because names are views of these bytes as long as
  // the reader lives, and the file's owner may truncate the file.
  const auto read = [&](uint64_t offset, uint64_t length) -> Result<Buffer> {
    HAULWAY_ASSIGN(Buffer bytes, AllocateBuffer(length));
    if (length > 0) HAULWAY_TRY(source_->ReadAt(offset, bytes.mutable_bytes()));
    return bytes;
  };
  HAULWAY_ASSIGN(const Buffer tail, read(size - tail_bytes, tail_bytes));
  HAULWAY_ASSIGN(end_,
                 ParseEndRecords(tail.bytes(), size, strictness_, limits_));
  if (end_.directory_offset >= size - tail_bytes) {
    directory_ = tail.Slice(end_.directory_offset - (size - tail_bytes),
                            end_.directory_bytes);
  } else {
    HAULWAY_ASSIGN(directory_,
                   read(end_.directory_offset, end_.directory_bytes));
  }
  HAULWAY_ASSIGN(entries_,
                 ParseDirectory(directory_.bytes(), end_, strictness_, names));
  return KeepNames();
}

// Replaces the directory by the names in it, which are a part of it.
Status ZipReader::KeepNames() {
  uint64_t bytes = 1;
  for (const Entry& entry : entries_) bytes += entry.name.size();
  HAULWAY_ASSIGN(Buffer names, AllocateBuffer(bytes));
  char* next = reinterpret_cast<char*>(names.mutable_bytes().data());
  for (Entry& entry : entries_) {
    const size_t length = entry.name.copy(next, entry.name.size());
    entry.name = {next, length};
    next += length;
  }
  directory_ = std::move(names);
  return Status();
}

// Checks rules Z05 and Z20, as far as the directory allows.
Status ZipReader::CheckPositions() {
  by_offset_.resize(entries_.size());
  std::iota(by_offset_.begin(), by_offset_.end(), 0);
  const auto offset = [&](uint32_t i) { return entries_[i].header_offset; };
  if (!std::ranges::is_sorted(by_offset_, {}, offset)) {
    std::ranges::stable_sort(by_offset_, {}, offset);
  }
  if (strictness_ == Strictness::kLenient) return Status();
  const uint64_t first = entries_[by_offset_[0]].header_offset;
  if (first != 0) {
    return Status(Code::kCorrupt,
                  fmt::format("{} bytes precede the first record: expected "
                              "none",
                              first))
        .At(0);
  }
  for (size_t i = 0; i < by_offset_.size(); ++i) {
    const Entry& entry = entries_[by_offset_[i]];
    // ParseDirectory() checked that this sum is within the file.
    const uint64_t least = entry.header_offset + kLocalHeaderBytes +
                           entry.name.size() + entry.compressed_size;
    if (least > NextHeader(i)) {
      return Status(Code::kCorrupt,
                    fmt::format("record {} overlaps the next one at {}",
                                Quote(entry.name), NextHeader(i)))
          .At(entry.header_offset);
    }
  }
  return Status();
}

uint64_t ZipReader::NextHeader(size_t position) const {
  return position + 1 < by_offset_.size()
             ? entries_[by_offset_[position + 1]].header_offset
             : end_.directory_offset;
}

// Indexes the names by rule Z17. Only names with capital letters have a
// different lower-case form, and few do, so only these are stored twice.
Status ZipReader::IndexNames(NameRule rule) {
  const bool strict = strictness_ == Strictness::kStrict;
  const auto repeated = [&](const Entry& entry, const Entry& other) {
    return Status(Code::kCorrupt,
                  fmt::format("duplicate record {} and {}", Quote(entry.name),
                              Quote(other.name)))
        .At(entry.header_offset);
  };
  names_.Reserve(entries_.size());
  size_t folded_bytes = 0;
  const auto folds = [rule](const Entry& entry) {
    return rule == NameRule::kAnyCase &&
           std::ranges::any_of(entry.name, IsUpper);
  };
  for (uint32_t i = 0; i < entries_.size(); ++i) {
    // Lenient lookups return the last of equal names, so add from the end.
    const auto row =
        strict ? i : static_cast<uint32_t>(entries_.size() - 1 - i);
    const Entry& entry = entries_[row];
    const uint32_t other = names_.Add(entry.name, row, NameOf{entries_});
    if (other != NameIndex::kNone && strict) {
      return repeated(entry, entries_[other]);
    }
    if (folds(entry)) folded_bytes += entry.name.size();
  }
  folded_text_.reserve(folded_bytes);  // Keeps views of it valid.
  for (uint32_t i = 0; i < entries_.size(); ++i) {
    if (!folds(entries_[i])) continue;
    const std::string_view name = entries_[i].name;
    const size_t at = folded_text_.size();
    std::ranges::transform(name, std::back_inserter(folded_text_),
                           [](char c) { return LowerCase(c); });
    const std::string_view folded =
        std::string_view(folded_text_).substr(at, name.size());
    folded_names_.push_back({folded, i});
    const uint32_t number =
        folded_.Add(folded, static_cast<uint32_t>(folded_names_.size() - 1),
                    FoldedOf{*this});
    const uint32_t other = number != NameIndex::kNone
                               ? folded_names_[number].second
                               : names_.Find(folded, NameOf{entries_});
    if (other != NameIndex::kNone && strict) {
      return repeated(entries_[i], entries_[other]);
    }
  }
  return Status();
}

uint32_t ZipReader::Find(std::string_view name) const {
  return names_.Find(name, NameOf{entries_});
}

uint32_t ZipReader::FindAnyCase(std::string_view name) const {
  const std::string folded = LowerCase(name);
  const uint32_t found = names_.Find(folded, NameOf{entries_});
  if (found != NameIndex::kNone) return found;
  const uint32_t number = folded_.Find(folded, FoldedOf{*this});
  return number == NameIndex::kNone ? number : folded_names_[number].second;
}

bool ZipReader::ComputeOffsets(uint64_t alignment) {
  for (size_t i = 0; i < by_offset_.size(); ++i) {
    Entry& entry = entries_[by_offset_[i]];
    entry.payload_offset = ComputePayloadOffset(
        entry.header_offset, entry.name.size(), entry.size, alignment);
    entry.end = entry.payload_offset + entry.compressed_size +
                (entry.size == 0  ? 0
                 : entry.is_big() ? 24
                                  : 16);
    const bool has_descriptor = (entry.flags & kFlagDescriptor) != 0;
    if (entry.end != NextHeader(i) || has_descriptor != (entry.size != 0)) {
      return false;
    }
  }
  return true;
}

Result<std::vector<uint64_t>> ZipReader::ReadHeaderLengths() const {
  Headers headers;
  for (const uint32_t i : by_offset_) {
    headers.Add(entries_[i].header_offset, kLocalHeaderBytes);
  }
  HAULWAY_TRY(headers.Read(*source_));
  std::vector<uint64_t> lengths(by_offset_.size());
  for (size_t i = 0; i < by_offset_.size(); ++i) {
    const Entry& entry = entries_[by_offset_[i]];
    const auto length = LocalHeaderLength(headers[i]);
    if (!length.ok()) {
      return length.status()
          .At(entry.header_offset)
          .In(fmt::format("record {}", Quote(entry.name)));
    }
    lengths[i] = *length;
    uint64_t bytes = 0;
    if (!CheckedAdd(*length, entry.compressed_size, &bytes) ||
        !RangeFits(entry.header_offset, bytes, end_.directory_offset)) {
      return Status(Code::kCorrupt,
                    fmt::format("record {} runs into the directory at {}",
                                Quote(entry.name), end_.directory_offset))
          .At(entry.header_offset);
    }
  }
  return lengths;
}

Status ZipReader::ResolveOffsets() {
  HAULWAY_ASSIGN(const std::vector<uint64_t> lengths, ReadHeaderLengths());
  Headers headers;
  for (size_t i = 0; i < by_offset_.size(); ++i) {
    Entry& entry = entries_[by_offset_[i]];
    headers.Add(entry.header_offset, lengths[i]);
    entry.payload_offset = entry.header_offset + lengths[i];
    const uint64_t payload_end = entry.payload_offset + entry.compressed_size;
    if (payload_end > NextHeader(i) && strictness_ == Strictness::kStrict) {
      return Status(Code::kCorrupt,
                    fmt::format("record {} overlaps the next one at {}",
                                Quote(entry.name), NextHeader(i)))
          .At(entry.header_offset);
    }
    // The descriptor is at most as long as the gap.
    const uint64_t gap =
        NextHeader(i) > payload_end ? NextHeader(i) - payload_end : 0;
    const bool has_descriptor = (entry.flags & kFlagDescriptor) != 0;
    entry.end =
        payload_end + (has_descriptor ? std::min(gap, kLongestDescriptor) : 0);
  }
  // Unless records overlap, the headers together are not longer than the file.
  if (strictness_ == Strictness::kLenient) return Status();
  HAULWAY_TRY(headers.Read(*source_));
  for (size_t i = 0; i < by_offset_.size(); ++i) {
    HAULWAY_TRY(CheckLocalHeader(entries_[by_offset_[i]], headers[i]));
  }
  return Status();
}

Status ZipReader::CompareOffsets() const {
  HAULWAY_ASSIGN(const std::vector<uint64_t> lengths, ReadHeaderLengths());
  for (size_t i = 0; i < by_offset_.size(); ++i) {
    const Entry& entry = entries_[by_offset_[i]];
    const uint64_t found = entry.header_offset + lengths[i];
    if (found == entry.payload_offset) continue;
    return Status(Code::kCorrupt,
                  fmt::format("computed offset of record {} is wrong: expected "
                              "{}, found {}",
                              Quote(entry.name), entry.payload_offset, found))
        .At(entry.header_offset);
  }
  return Status();
}

Status ZipReader::CheckFrame(const Entry& entry,
                             std::span<const std::byte> before,
                             std::span<const std::byte> after) const {
  // The header's length must match, whoever wrote the file; otherwise the
  // payload would be other bytes.
  const auto length = LocalHeaderLength(before);
  if (!length.ok() || *length != before.size()) {
    return Status(Code::kCorrupt,
                  fmt::format("payload of record {} is not where it was "
                              "computed: expected it {} bytes after its "
                              "header, found {}",
                              Quote(entry.name), before.size(),
                              length.ok() ? *length : 0))
        .At(entry.header_offset);
  }
  if (strictness_ == Strictness::kLenient) return Status();
  HAULWAY_TRY(CheckLocalHeader(entry, before));
  return CheckDescriptor(entry, after);
}

Status ZipReader::CheckSize(const Entry& entry) const {
  return CheckInflation(entry, limits_.max_inflate_ratio, "max_inflate_ratio");
}

Status ZipReader::CheckMetadataSize(const Entry& entry) const {
  return CheckInflation(entry, limits_.max_metadata_inflate_ratio,
                        "max_metadata_inflate_ratio");
}

Status ZipReader::CheckInflation(const Entry& entry, uint64_t ratio,
                                 std::string_view cap) const {
  if (entry.method == kMethodStored) return Status();
  if (entry.size > limits_.max_inflated_bytes) {
    return Status(Code::kLimit,
                  fmt::format("record {} inflates to {} bytes, which passes "
                              "max_inflated_bytes {}",
                              Quote(entry.name), entry.size,
                              limits_.max_inflated_bytes))
        .At(entry.header_offset);
  }
  uint64_t most = 0;
  if (CheckedMultiply(entry.compressed_size, ratio, &most) &&
      entry.size > most) {
    return Status(Code::kLimit,
                  fmt::format("record {} inflates from {} to {} bytes, which "
                              "passes {} {}",
                              Quote(entry.name), entry.compressed_size,
                              entry.size, cap, ratio))
        .At(entry.header_offset);
  }
  return Status();
}

Status ZipReader::Inflate(const Entry& entry,
                          std::span<const std::byte> deflated,
                          std::span<std::byte> out) const {
  HAULWAY_TRY(CheckSize(entry));
  const std::unique_ptr<libdeflate_decompressor,
                        void (*)(libdeflate_decompressor*)>
      inflater(libdeflate_alloc_decompressor(), &libdeflate_free_decompressor);
  if (inflater == nullptr) {
    return Status(Code::kLimit, "no memory to inflate");
  }
  size_t used = 0;
  const libdeflate_result result = libdeflate_deflate_decompress_ex(
      inflater.get(), deflated.data(), deflated.size(), out.data(), out.size(),
      &used, nullptr);
  if (result == LIBDEFLATE_SUCCESS && used == deflated.size()) return Status();
  return Status(Code::kCorrupt,
                result == LIBDEFLATE_SUCCESS
                    ? fmt::format("record {} leaves {} deflated bytes over",
                                  Quote(entry.name), deflated.size() - used)
                    : fmt::format("record {} does not inflate to its size {}",
                                  Quote(entry.name), entry.size))
      .At(entry.payload_offset);
}

Status ZipReader::Read(const Entry& entry, std::span<std::byte> out) const {
  if (out.size() != entry.size) {
    return Status(Code::kInvalidArgument,
                  fmt::format("record size {} mismatch with dst size {}",
                              entry.size, out.size()));
  }
  HAULWAY_TRY(CheckSize(entry));
  const uint64_t before = entry.payload_offset - entry.header_offset;
  const uint64_t payload_end = entry.payload_offset + entry.compressed_size;
  std::vector<std::byte> frame(before + (entry.end - payload_end));
  const std::span<std::byte> bytes(frame);
  Buffer deflated;
  std::span<std::byte> stored = out;
  if (entry.method == kMethodDeflated && entry.compressed_size > 0) {
    HAULWAY_ASSIGN(deflated, AllocateBuffer(entry.compressed_size));
    stored = deflated.mutable_bytes();
  }
  const ReadRequest requests[] = {
      {entry.header_offset, bytes.subspan(0, before)},
      {entry.payload_offset, stored},
      {payload_end, bytes.subspan(before)},
  };
  HAULWAY_TRY(source_->ReadMany(requests));
  HAULWAY_TRY(
      CheckFrame(entry, bytes.subspan(0, before), bytes.subspan(before)));
  if (entry.method == kMethodDeflated)
    return Inflate(entry, deflated.bytes(), out);
  return Status();
}

Result<Buffer> ZipReader::Read(const Entry& entry) const {
  if (entry.method == kMethodStored) {
    auto frame =
        source_->View(entry.header_offset, entry.end - entry.header_offset);
    if (frame.has_value()) {
      const uint64_t before = entry.payload_offset - entry.header_offset;
      HAULWAY_TRY(CheckFrame(entry, frame->bytes().subspan(0, before),
                             frame->bytes().subspan(before + entry.size)));
      return frame->Slice(before, entry.size);
    }
  }
  HAULWAY_TRY(CheckSize(entry));
  HAULWAY_ASSIGN(Buffer bytes, AllocateBuffer(entry.size));
  HAULWAY_TRY(Read(
      entry, entry.size == 0 ? std::span<std::byte>() : bytes.mutable_bytes()));
  return bytes;
}

}  // namespace haulway::zip
