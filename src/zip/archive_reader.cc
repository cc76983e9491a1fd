// Design: all records of an archive are in one folder, that of the first name;
// the folder is omitted from names from there on. The alignment that the writer
// used determines where payloads begin. There are few possible alignments. Each
// is tested against the directory alone, which needs no read, because a wrong
// one contradicts the directory at the first record that it would place
// elsewhere. Opening reads the small records together.
//
// Alternative not taken: read the record with the alignment first. Its own
// offset depends on the alignment. By default records are read whole and
// checked; on request in pieces and by several threads, as PyTorchFileReader
// allows.

#include "zip/archive_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <system_error>
#include <utility>

#include "base/digest.h"
#include "base/no_memory.h"
#include "base/text.h"
#include "base/thread_pool.h"

namespace haulway::zip {

namespace {

constexpr std::string_view kDebugSymbols = ".debug_pkl";
constexpr uint64_t kOldestVersion = 1;
constexpr uint64_t kNewestVersion = 10;
// Powers of two up to 32768, and 65536, which a few writers use; the default
// and the recommended alignment first. torch also writes other alignments; the
// offsets are then read from the local headers.
constexpr uint64_t kAlignments[] = {64,   4096, 1,     2,     4,    8,
                                    16,   32,   128,   256,   512,  1024,
                                    2048, 8192, 16384, 32768, 65536};

std::string_view TextOf(const Buffer& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::optional<uint64_t> Decimal(std::string_view text, Strictness strictness) {
  uint64_t number = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc()) return std::nullopt;
  const std::string_view rest(stop, static_cast<size_t>(end - stop));
  if (strictness == Strictness::kStrict && !rest.empty() && rest != "\n") {
    return std::nullopt;
  }
  return number;
}

Status CompareCrc(const Entry& entry, uint32_t found) {
  if (found == entry.crc32) return Status();
  return Status(Code::kMismatch,
                fmt::format("CRC-32 of record {} differs: expected {}, found "
                            "{}",
                            Quote(entry.name), entry.crc32, found))
      .At(entry.payload_offset);
}

class Chunks final : public ChunkReader {
 public:
  // `source` has the record's bytes from `offset` on. `entry` belongs to `zip`.
  Chunks(std::shared_ptr<const ZipReader> zip, const Entry& entry,
         std::shared_ptr<const ByteSource> source, uint64_t offset,
         bool is_checked)
      : zip_(std::move(zip)),
        entry_(entry),
        source_(std::move(source)),
        offset_(offset),
        is_checked_(is_checked) {}

  Result<uint64_t> Next(std::span<std::byte> out) override {
    const auto piece =
        out.first(std::min<uint64_t>(out.size(), entry_.size - done_));
    HAULWAY_TRY(source_->ReadAt(offset_ + done_, piece));
    done_ += piece.size();
    if (is_checked_ && !piece.empty()) {
      crc32_ = Crc32(crc32_, piece);
      if (done_ == entry_.size) {
        HAULWAY_TRY(CompareCrc(entry_, crc32_).Of(zip_->source()->name()));
      }
    }
    return piece.size();
  }
  uint64_t record_size() const override { return entry_.size; }

 private:
  const std::shared_ptr<const ZipReader> zip_;
  const Entry& entry_;
  const std::shared_ptr<const ByteSource> source_;
  const uint64_t offset_;
  const bool is_checked_;
  uint64_t done_ = 0;
  uint32_t crc32_ = 0;
};

}  // namespace

Result<std::shared_ptr<const Archive>> Archive::Open(
    std::shared_ptr<const ByteSource> source, const ArchiveOptions& options,
    std::span<const std::string_view> prefetch) {
  std::shared_ptr<Archive> archive(new Archive(options));
  HAULWAY_TRY(archive->Init(std::move(source), prefetch));
  return std::shared_ptr<const Archive>(std::move(archive));
}

Status Archive::Init(std::shared_ptr<const ByteSource> source,
                     std::span<const std::string_view> prefetch) {
  HAULWAY_ASSIGN(
      auto zip,
      ZipReader::Open(std::move(source), options_.strictness, options_.limits));
  zip_ = std::move(zip);
  HAULWAY_TRY(FindFolder());
  HAULWAY_TRY(FindOffsets());
  return ReadVersion(prefetch);
}

// The folder is the part before the first slash of the first name.
Status Archive::FindFolder() {
  const std::vector<Entry>& entries = zip_->entries();
  const std::string_view first = entries[0].name;
  const size_t slash = first.find('/');
  if (slash == first.npos) {
    return Status(Code::kCorrupt,
                  fmt::format("file in archive is not in a subdirectory: {}",
                              Quote(first)))
        .At(entries[0].header_offset);
  }
  name_ = first.substr(0, slash);
  if (options_.strictness == Strictness::kLenient) return Status();
  for (const Entry& entry : entries) {
    if (IsInFolder(entry)) continue;
    return Status(Code::kCorrupt,
                  fmt::format("file in archive is not in a subdirectory {}: "
                              "{}",
                              Quote(name_ + "/"), Quote(entry.name)))
        .At(entry.header_offset);
  }
  return Status();
}

bool Archive::IsInFolder(const Entry& entry) const {
  return entry.name.size() > name_.size() && entry.name.starts_with(name_) &&
         entry.name[name_.size()] == '/';
}

bool Archive::IsRecord(const Entry& entry) const {
  return IsInFolder(entry) && !entry.is_folder() &&
         (options_.load_debug_symbols || !entry.name.ends_with(kDebugSymbols));
}

const std::vector<RecordInfo>& Archive::records() const {
  std::call_once(listed_, [&] {
    records_.reserve(zip_->entries().size());
    for (const Entry& entry : zip_->entries()) {
      if (!IsRecord(entry)) continue;
      records_.push_back({.name = entry.name.substr(name_.size() + 1),
                          .header_offset = entry.header_offset,
                          .size = entry.size,
                          .compressed_size = entry.compressed_size,
                          .crc32 = entry.crc32,
                          .deflated = entry.method == kMethodDeflated});
    }
  });
  return records_;
}

// Computes the offsets. The record .storage_alignment has the alignment, but
// its position depends on the alignment. Testing the few possible ones needs no
// read: a wrong one contradicts the directory at the first record that it would
// place elsewhere.
Status Archive::FindOffsets() {
  if (options_.strictness == Strictness::kStrict) {
    for (const uint64_t alignment : kAlignments) {
      if (!zip_->ComputeOffsets(alignment)) continue;
      alignment_ = alignment;
      offsets_computed_ = true;
      return Status();
    }
  }
  return zip_->ResolveOffsets();
}

Status Archive::ReadVersion(std::span<const std::string_view> prefetch) {
  std::vector<std::string_view> names = {".data/version", "version",
                                         ".data/serialization_id"};
  const size_t own = names.size();
  names.insert(names.end(), prefetch.begin(), prefetch.end());
  HAULWAY_ASSIGN(const auto found, ReadRecords(names));
  prefetched_.assign(found.begin() + static_cast<ptrdiff_t>(own), found.end());
  if (found[2].has_value()) serialization_id_ = TextOf(*found[2]);
  const auto& version = found[0].has_value() ? found[0] : found[1];
  if (!version.has_value()) {
    return Status(Code::kCorrupt, "archive has no version record")
        .In("zip directory");
  }
  const Entry* entry = FindEntry(names[found[0].has_value() ? 0 : 1]);
  const uint64_t at = entry == nullptr ? 0 : entry->payload_offset;
  const auto number = Decimal(TextOf(*version), options_.strictness);
  if (!number.has_value()) {
    return Status(Code::kCorrupt,
                  fmt::format("couldn't parse the version {} as a number",
                              Quote(TextOf(*version))))
        .At(at);
  }
  if (*number < kOldestVersion || *number > kNewestVersion) {
    return Status(
               *number > kNewestVersion ? Code::kUnsupported : Code::kCorrupt,
               fmt::format("version is out of range: expected {} to {}, "
                           "found {}",
                           kOldestVersion, kNewestVersion, *number))
        .At(at);
  }
  version_ = *number;
  return Status();
}

const Entry* Archive::FindEntry(std::string_view name) const {
  const std::string full = fmt::format("{}/{}", name_, name);
  uint32_t row = zip_->Find(full);
  if (row == NameIndex::kNone && options_.strictness == Strictness::kLenient) {
    row = zip_->FindAnyCase(full);
  }
  return row == NameIndex::kNone || zip_->entries()[row].is_folder()
             ? nullptr
             : &zip_->entries()[row];
}

const Entry* Archive::FindEntryAfter(const Entry* last, std::string_view folder,
                                     std::string_view name) const {
  const std::vector<Entry>& entries = zip_->entries();
  if (last != nullptr && last != &entries.back()) {
    std::string_view next = last[1].name;
    const size_t length = name_.size() + 1 + folder.size();
    if (next.size() == length + name.size() && next.starts_with(name_) &&
        next[name_.size()] == '/' &&
        next.substr(name_.size() + 1).starts_with(folder) &&
        next.ends_with(name) && !last[1].is_folder() &&
        options_.strictness == Strictness::kStrict) {
      return last + 1;
    }
  }
  return FindEntry(fmt::format("{}{}", folder, name));
}

const RecordInfo* Archive::Find(std::string_view name) const {
  const Entry* entry = FindEntry(name);
  if (entry == nullptr || !IsRecord(*entry)) return nullptr;
  // The records are entries in the same order, and few entries are no records.
  const std::vector<RecordInfo>& all = records();
  auto at = static_cast<size_t>(entry - zip_->entries().data());
  at = std::min(at, all.size() - 1);
  while (all[at].name.data() != entry->name.data() + name_.size() + 1) --at;
  return &all[at];
}

Result<const Entry*> Archive::Existing(std::string_view name) const {
  const Entry* entry = FindEntry(name);
  if (entry != nullptr && IsRecord(*entry)) return entry;
  return Status(Code::kNotFound, fmt::format("no record {}", Quote(name)))
      .Of(source().name());
}

Status Archive::CheckCrc(const Entry& entry,
                         std::span<const std::byte> bytes) const {
  if (!options_.verify_crc || entry.crc32 == 0) return Status();
  return CompareCrc(entry, Crc32(0, bytes));
}

Result<std::vector<std::optional<Buffer>>> Archive::ReadRecords(
    std::span<const std::string_view> names) const {
  std::vector<std::optional<Buffer>> found(names.size());
  struct Frame {
    size_t name;
    const Entry* entry;
    Buffer bytes;
  };
  std::vector<Frame> frames;
  std::vector<ReadRequest> requests;
  for (size_t i = 0; i < names.size(); ++i) {
    const Entry* entry = FindEntry(names[i]);
    if (entry == nullptr) continue;
    HAULWAY_TRY(zip_->CheckMetadataSize(*entry));
    // These bytes are used later too, so they must not be in a mapping, which
    // the file's owner may truncate. Inflated records have their own memory.
    if (entry->method == kMethodDeflated) {
      HAULWAY_ASSIGN(found[i], zip_->Read(*entry));
      continue;
    }
    Frame frame{i, entry, {}};
    HAULWAY_ASSIGN(frame.bytes,
                   AllocateBuffer(entry->end - entry->header_offset));
    requests.push_back({entry->header_offset, frame.bytes.mutable_bytes()});
    frames.push_back(std::move(frame));
  }
  HAULWAY_TRY(zip_->source()->ReadMany(requests));
  for (const Frame& frame : frames) {
    const Entry& entry = *frame.entry;
    const uint64_t before = entry.payload_offset - entry.header_offset;
    HAULWAY_TRY(zip_->CheckFrame(
        entry, frame.bytes.bytes().subspan(0, before),
        frame.bytes.bytes().subspan(before + entry.compressed_size)));
    found[frame.name] = frame.bytes.Slice(before, entry.size);
  }
  for (size_t i = 0; i < names.size(); ++i) {
    if (!found[i].has_value()) continue;
    HAULWAY_TRY(CheckCrc(*FindEntry(names[i]), found[i]->bytes()));
  }
  return found;
}

Result<Buffer> Archive::Read(std::string_view name) const {
  HAULWAY_ASSIGN(const Entry* entry, Existing(name));
  auto bytes = zip_->Read(*entry);
  Status status =
      bytes.ok() ? CheckCrc(*entry, bytes->bytes()) : std::move(bytes).status();
  if (!status.ok()) return std::move(status).Of(source().name());
  return bytes;
}

Status Archive::ReadInto(std::string_view name,
                         std::span<std::byte> out) const {
  HAULWAY_ASSIGN(const Entry* entry, Existing(name));
  Status status = zip_->Read(*entry, out);
  if (status.ok()) status = CheckCrc(*entry, out);
  return status.ok() ? std::move(status)
                     : Status(std::move(status).Of(source().name()));
}

Status Archive::ReadChunked(std::string_view name, uint64_t chunk_bytes,
                            const CopyFunction& copy) const {
  return OrNoMemory([&] { return CopyChunks(name, chunk_bytes, copy); });
}

Status Archive::CopyChunks(std::string_view name, uint64_t chunk_bytes,
                           const CopyFunction& copy) const {
  HAULWAY_ASSIGN(const std::unique_ptr<ChunkReader> chunks, OpenChunks(name));
  const uint64_t size = chunks->record_size();
  if (chunk_bytes == 0) chunk_bytes = size;
  HAULWAY_ASSIGN(const Buffer memory,
                 AllocateBuffer(std::min(chunk_bytes, size)));
  const std::span<std::byte> piece =
      size == 0 ? std::span<std::byte>() : memory.mutable_bytes();
  for (uint64_t done = 0; done < size;) {
    HAULWAY_ASSIGN(const uint64_t length, chunks->Next(piece));
    copy(done, memory.bytes().subspan(0, length));
    done += length;
  }
  return Status();
}

Result<std::unique_ptr<ChunkReader>> Archive::OpenChunks(
    std::string_view name) const {
  HAULWAY_ASSIGN(const Entry* entry, Existing(name));
  const bool is_checked = options_.verify_crc && entry->crc32 != 0;
  if (entry->method == kMethodDeflated) {
    HAULWAY_ASSIGN(Buffer bytes, zip_->Read(*entry));
    return std::unique_ptr<ChunkReader>(new Chunks(
        zip_, *entry, MakeBufferSource(std::move(bytes)), 0, is_checked));
  }
  HAULWAY_ASSIGN(const uint64_t offset, DataOffset(name));
  return std::unique_ptr<ChunkReader>(
      new Chunks(zip_, *entry, zip_->source(), offset, is_checked));
}

Status Archive::ReadParallel(
    std::string_view name,
    std::span<const std::shared_ptr<const ByteSource>> additional,
    uint64_t threshold, std::span<std::byte> out) const {
  if (std::ranges::find(additional, nullptr) != additional.end()) {
    return Status(Code::kInvalidArgument, "source is null");
  }
  HAULWAY_ASSIGN(const Entry* entry, Existing(name));
  if (additional.empty() || entry->method == kMethodDeflated ||
      entry->size < threshold || out.size() != entry->size) {
    return ReadInto(name, out);
  }
  const uint64_t threads = additional.size() + 1;
  const uint64_t part = (entry->size + threads - 1) / threads;
  Status status = ParallelFor(
      threads, static_cast<int>(threads), [&](uint64_t i) -> Status {
        const uint64_t begin = std::min(i * part, entry->size);
        const uint64_t end = std::min(begin + part, entry->size);
        const ByteSource& from = i == 0 ? source() : *additional[i - 1];
        return from.ReadAt(entry->payload_offset + begin,
                           out.subspan(begin, end - begin));
      });
  if (status.ok()) status = DataOffset(name).status();
  if (status.ok()) return CheckCrc(*entry, out);
  return std::move(status).Of(source().name());
}

Result<uint64_t> Archive::DataOffset(std::string_view name) const {
  HAULWAY_ASSIGN(const Entry* entry, Existing(name));
  std::vector<std::byte> header(entry->payload_offset - entry->header_offset);
  HAULWAY_TRY(zip_->source()->ReadAt(entry->header_offset, header));
  const auto length = LocalHeaderLength(header);
  if (!length.ok()) return length.status().At(entry->header_offset);
  if (*length != header.size()) {
    return Status(Code::kCorrupt,
                  fmt::format("computed offset of record {} is wrong: expected "
                              "{}, found {}",
                              Quote(entry->name), entry->payload_offset,
                              entry->header_offset + *length))
        .At(entry->header_offset);
  }
  if (options_.strictness == Strictness::kStrict) {
    HAULWAY_TRY(CheckLocalHeader(*entry, header));
  }
  return entry->payload_offset;
}

}  // namespace haulway::zip

namespace haulway {

Result<std::shared_ptr<const ArchiveReader>> ArchiveReader::Open(
    std::shared_ptr<const ByteSource> source, const ArchiveOptions& options) {
  if (source == nullptr) {
    return Status(Code::kInvalidArgument, "source is null");
  }
  const std::string name(source->name());
  auto archive = OrNoMemory(
      [&] { return zip::Archive::Open(std::move(source), options); });
  if (!archive.ok()) return std::move(archive).status().Of(name);
  return std::shared_ptr<const ArchiveReader>(std::move(archive).value());
}

}  // namespace haulway
