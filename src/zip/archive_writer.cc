// Design: records are written one after another as PyTorchStreamWriter does,
// each with its local header, its payload, and a descriptor with the CRC-32,
// which is known only then. The directory is at the end. The writer keeps only
// what the directory needs, so an archive may be larger than memory. After the
// first failure, all later calls fail with it.
//
// Alternative not taken: the engine in save/. It must know all records before
// the first is written. Both encode with zip/zip_writer.h, and tests compare
// their bytes. Deflated records are compressed by another library than torch's,
// so their stored bytes differ, but they inflate to the same.

#include <fmt/format.h>
#include <libdeflate.h>

#include <algorithm>
#include <array>
#include <bit>
#include <memory>
#include <utility>

#include "base/cursor.h"
#include "base/digest.h"
#include "base/name_index.h"
#include "base/text.h"
#include "base/thread_pool.h"
#include "haulway/archive.h"
#include "haulway/machine.h"
#include "haulway/options.h"
#include "zip/zip_format.h"
#include "zip/zip_writer.h"

namespace haulway {

namespace {

constexpr uint64_t kLowestVersion = 3;
// From this version on, the version record is in the folder ".data".
constexpr uint64_t kVersionInData = 6;
constexpr int kDeflateLevel = 9;
constexpr uint64_t kShortestDeflated = 4;
constexpr uint64_t kPieceBytes = kMiB;

class Writer : public ArchiveWriter {
 public:
  Writer(std::unique_ptr<ByteSink> sink, SinkTraits traits,
         const ArchiveWriterOptions& options)
      : sink_(std::move(sink)),
        options_(options),
        ordered_(traits.ordered),
        threads_(traits.ordered        ? 1
                 : options.threads > 0 ? options.threads
                                       : UsableCpus()) {}

  void SetMinVersion(uint64_t version) override {
    version_ = std::max(version_, version);
  }

  Status WriteRecord(std::string_view name, std::span<const std::byte> bytes,
                     bool compress) override {
    if (name == zip::kIdRecord && !finished_) return Status();
    HAULWAY_ASSIGN(zip::NewEntry entry, NewRecord(name, bytes.size()));
    std::string deflated;
    if (compress && bytes.size() >= kShortestDeflated) {
      HAULWAY_ASSIGN(deflated, Deflate(bytes));
      entry.crc32 = Crc32(0, bytes);
      bytes = std::as_bytes(std::span<const char>(deflated));
      entry.stored_size = bytes.size();
      entry.deflated = true;
    }
    return Append(std::move(entry), bytes);
  }

  Status WriteRecordMetadata(std::string_view name, uint64_t size) override {
    HAULWAY_ASSIGN(zip::NewEntry entry, NewRecord(name, size));
    return Append(std::move(entry), std::nullopt);
  }

  Status Finish() override {
    if (finished_) {
      return Status(Code::kInvalidArgument, "archive is finished already");
    }
    HAULWAY_TRY(status_);
    const std::string version = fmt::format("{}\n", version_);
    const std::string_view order =
        std::endian::native == std::endian::little ? "little" : "big";
    HAULWAY_TRY(WriteMissing(
        version_ < kVersionInData ? "version" : ".data/version", version));
    HAULWAY_TRY(WriteMissing("byteorder", order));
    zip::SerializationId digits;
    for (const zip::NewEntry& entry : entries_) digits.Add(entry.name, entry);
    id_ = digits.Digits();
    zip::NewEntry id;
    id.name = zip::kIdRecord;
    id.header_offset = end_;
    id.size = id.stored_size = id_.size();
    zip::Place(&id, options_.archive_name, options_.alignment);
    HAULWAY_TRY(
        Append(std::move(id), std::as_bytes(std::span<const char>(id_))));
    std::vector<std::byte> tail(zip::EndBytes(entries_, options_.archive_name));
    zip::EncodeEnd(entries_, options_.archive_name, end_, tail);
    HAULWAY_TRY(Put(end_, tail));
    finished_ = true;
    return Note(sink_->Commit(end_ + tail.size()));
  }

  bool finished() const override { return finished_; }
  std::string_view archive_name() const override {
    return options_.archive_name;
  }
  std::string_view serialization_id() const override { return id_; }
  std::vector<RecordInfo> records() const override {
    std::vector<RecordInfo> records;
    records.reserve(entries_.size());
    for (const zip::NewEntry& entry : entries_) {
      records.push_back({entry.name, entry.header_offset, entry.size,
                         entry.stored_size, entry.crc32, entry.deflated});
    }
    return records;
  }

 private:
  // Records the first failure. All later calls fail with it.
  Status Note(Status status) {
    if (!status.ok() && status_.ok()) {
      status_ = std::move(status).Of(sink_->name());
    }
    return status_;
  }
  Status Put(uint64_t offset, std::span<const std::byte> bytes) {
    return Note(sink_->WriteAt(offset, bytes));
  }

  Result<zip::NewEntry> NewRecord(std::string_view name, uint64_t size) {
    if (finished_) {
      return Status(Code::kInvalidArgument, "archive is finished already");
    }
    HAULWAY_TRY(status_);
    HAULWAY_TRY(zip::CheckName(name, options_.archive_name));
    if (names_.Find(name, NameOf{entries_}) != NameIndex::kNone) {
      return Status(Code::kInvalidArgument,
                    fmt::format("record {} is written twice", Quote(name)));
    }
    if (name.ends_with('/') && size > 0) {
      return Status(Code::kInvalidArgument,
                    fmt::format("folder {} must be empty: found {} bytes",
                                Quote(name), size));
    }
    zip::NewEntry entry;
    entry.name = name;
    entry.header_offset = end_;
    entry.size = entry.stored_size = size;
    zip::Place(&entry, options_.archive_name, options_.alignment);
    return entry;
  }

  // Writes header, payload (or a hole for it) and descriptor.
  Status Append(zip::NewEntry entry,
                std::optional<std::span<const std::byte>> payload) {
    std::vector<std::byte> frame(entry.payload_offset - entry.header_offset);
    zip::EncodeLocalHeader(entry, options_.archive_name, frame);
    HAULWAY_TRY(Put(entry.header_offset, frame));
    if (payload.has_value()) {
      HAULWAY_ASSIGN(const uint32_t crc,
                     WritePayload(entry.payload_offset, *payload));
      if (!entry.deflated) entry.crc32 = crc;
      if (!options_.compute_crc32) entry.crc32 = 0;
      NoteFalseDescriptor(*payload, &entry);
    } else if (ordered_) {
      HAULWAY_TRY(WriteZeros(entry.payload_offset, entry.size));
    }
    frame.resize(zip::DescriptorBytes(entry));
    zip::EncodeDescriptor(entry, frame);
    HAULWAY_TRY(Put(entry.payload_end(), frame));
    end_ = entry.payload_end() + frame.size();
    entries_.push_back(std::move(entry));
    names_.Add(entries_.back().name, static_cast<uint32_t>(entries_.size() - 1),
               NameOf{entries_});
    return Status();
  }

  // Writes a payload, and returns its CRC-32.
  Result<uint32_t> WritePayload(uint64_t offset,
                                std::span<const std::byte> bytes) {
    const uint64_t pieces = (bytes.size() + kPieceBytes - 1) / kPieceBytes;
    std::vector<uint32_t> crcs(pieces);
    HAULWAY_TRY(Note(ParallelFor(pieces, threads_, [&](uint64_t i) {
      const auto piece = bytes.subspan(
          i * kPieceBytes,
          std::min<uint64_t>(kPieceBytes, bytes.size() - i * kPieceBytes));
      if (options_.compute_crc32) crcs[i] = Crc32(0, piece);
      return sink_->WriteAt(offset + i * kPieceBytes, piece);
    })));
    uint32_t crc = 0;
    for (uint64_t i = 0; i < pieces; ++i) {
      crc = Crc32Join(
          crc, crcs[i],
          std::min<uint64_t>(kPieceBytes, bytes.size() - i * kPieceBytes));
    }
    return crc;
  }

  Status WriteZeros(uint64_t offset, uint64_t size) {
    static constexpr std::array<std::byte, 64 * kKiB> kZeros{};
    for (uint64_t done = 0; done < size;) {
      const auto piece = std::span(kZeros).subspan(
          0, std::min<uint64_t>(kZeros.size(), size - done));
      HAULWAY_TRY(Put(offset + done, piece));
      done += piece.size();
    }
    return Status();
  }

  Status WriteMissing(std::string_view name, std::string_view text) {
    if (names_.Find(name, NameOf{entries_}) != NameIndex::kNone) {
      return Status();
    }
    return WriteRecord(name, std::as_bytes(std::span<const char>(text)), false);
  }

  static void NoteFalseDescriptor(std::span<const std::byte> payload,
                                  zip::NewEntry* entry) {
    ByteCursor cursor(payload);
    entry->has_false_descriptor =
        payload.size() >= 8 && cursor.U32() == zip::kDescriptorSignature;
    if (entry->has_false_descriptor) entry->false_descriptor = cursor.U32();
  }

  static Result<std::string> Deflate(std::span<const std::byte> bytes) {
    const std::unique_ptr<libdeflate_compressor,
                          void (*)(libdeflate_compressor*)>
        compressor(libdeflate_alloc_compressor(kDeflateLevel),
                   &libdeflate_free_compressor);
    if (compressor == nullptr) {
      return Status(Code::kLimit, "no memory to deflate");
    }
    std::string out(
        libdeflate_deflate_compress_bound(compressor.get(), bytes.size()),
        '\0');
    out.resize(libdeflate_deflate_compress(
        compressor.get(), bytes.data(), bytes.size(), out.data(), out.size()));
    return out;
  }

  struct NameOf {
    const std::vector<zip::NewEntry>& entries;
    std::string_view operator()(uint32_t i) const { return entries[i].name; }
  };

  const std::unique_ptr<ByteSink> sink_;
  const ArchiveWriterOptions options_;
  const bool ordered_;
  const int threads_;
  uint64_t version_ = kLowestVersion;
  std::vector<zip::NewEntry> entries_;
  NameIndex names_;
  std::string id_;
  uint64_t end_ = 0;  // Offset of the next record.
  Status status_;
  bool finished_ = false;
};

}  // namespace

Result<std::unique_ptr<ArchiveWriter>> ArchiveWriter::Open(
    std::unique_ptr<ByteSink> sink, const ArchiveWriterOptions& options) {
  HAULWAY_TRY(zip::CheckAlignment(options.alignment));
  if (options.archive_name.empty()) {
    return Status(Code::kInvalidArgument, "archive has no name");
  }
  HAULWAY_ASSIGN(const SinkTraits traits, sink->Begin(std::nullopt));
  return std::unique_ptr<ArchiveWriter>(
      std::make_unique<Writer>(std::move(sink), traits, options));
}

Result<std::string> ArchiveNameOf(std::string_view path) {
  if (path == "-") return std::string("archive");  // Standard output.
  const size_t slash = path.find_last_of("/\\");
  std::string_view name =
      slash == std::string_view::npos ? path : path.substr(slash + 1);
  if (const size_t dot = name.rfind('.'); dot != std::string_view::npos) {
    name = name.substr(0, dot);
  }
  if (name.empty()) {
    return Status(Code::kInvalidArgument,
                  fmt::format("invalid file name: {}", Quote(path)));
  }
  return std::string(name);
}

}  // namespace haulway
