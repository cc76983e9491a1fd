#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "base/cursor.h"
#include "base/digest.h"
#include "base/encoder.h"
#include "base/name_index.h"
#include "base/text.h"
#include "haulway/archive.h"
#include "zip/zip_format.h"
#include "zip/zip_writer.h"

namespace haulway {

namespace {

// The bytes of a payload that torch's writer may take for a descriptor.
constexpr size_t kFalseDescriptorBytes = 8;

// An ArchiveLayout keeps of a record its name, the offset of its header and its
// payload, and makes an entry of them whenever it encodes one.
class ArchiveLayout : public Layout {
 public:
  ArchiveLayout(std::vector<ArchiveRecord> records,
                const ArchiveWriterOptions& options)
      : options_(options) {
    uint64_t end = 0;
    uint64_t directory_bytes = 0;
    names_.reserve(records.size());
    headers_.reserve(records.size());
    payloads_.reserve(records.size());
    for (ArchiveRecord& record : records) {
      zip::NewEntry entry;
      entry.name = std::move(record.name);
      entry.header_offset = end;
      entry.size = entry.stored_size = record.size;
      zip::Place(&entry, options_.archive_name, options_.alignment);
      payloads_.push_back({entry.payload_offset, entry.size, record.bytes,
                           record.source, record.source_offset});
      end = entry.payload_end() + zip::DescriptorBytes(entry);
      directory_bytes += zip::DirectoryEntryBytes(entry, options_.archive_name);
      headers_.push_back(entry.header_offset);
      names_.push_back(std::move(entry.name));
    }
    id_.name = zip::kIdRecord;
    id_.header_offset = end;
    id_.size = id_.stored_size = zip::kIdBytes;
    zip::Place(&id_, options_.archive_name, options_.alignment);
    directory_offset_ = id_.payload_end() + zip::DescriptorBytes(id_);
    size_ = directory_offset_ + directory_bytes +
            zip::EndBytes(std::span(&id_, 1), options_.archive_name);
    frames_.reserve(payloads_.size() + 1);
    for (size_t i = 0; i <= payloads_.size(); ++i) {
      const uint64_t begin = i == 0 ? 0 : payloads_[i - 1].end();
      frames_.push_back({begin, 0, Needs::kPayload, i - 1});
      frames_.back().length =
          (i == payloads_.size() ? size_ : payloads_[i].offset) - begin;
    }
    frames_.front().needs = Needs::kNothing;
    if (!payloads_.empty()) frames_.back().needs = Needs::kAll;
  }

  uint64_t size() const override { return size_; }
  std::span<const Payload> payloads() const override { return payloads_; }
  // A frame between two payloads is the descriptor of one and the header of the
  // next.
  std::span<const Frame> frames() const override { return frames_; }
  Digesting digesting() const override {
    return options_.compute_crc32 ? Digesting::kCrc32 : Digesting::kNone;
  }

  Status EncodeFrame(size_t frame, const Digests& digests,
                     std::span<std::byte> out) const override {
    if (frame > 0) {
      const zip::NewEntry before = EntryOf(frame - 1, digests.crc32[frame - 1]);
      zip::EncodeDescriptor(before, out);
      out = out.subspan(zip::DescriptorBytes(before));
    }
    if (frame == names_.size()) return EncodeTail(digests.crc32, out);
    zip::EncodeLocalHeader(EntryOf(frame, 0), options_.archive_name, out);
    return Status();
  }

 private:
  zip::NewEntry EntryOf(size_t i, uint32_t crc32) const {
    const Payload& payload = payloads_[i];
    zip::NewEntry entry;
    entry.name = names_[i];
    entry.header_offset = headers_[i];
    entry.payload_offset = payload.offset;
    entry.size = entry.stored_size = payload.length;
    entry.crc32 = crc32;
    return entry;
  }

  // Notes a payload that begins as a descriptor does.
  static Status NoteFalseDescriptor(const Payload& payload,
                                    zip::NewEntry* entry) {
    if (payload.is_hole() || payload.length < kFalseDescriptorBytes) {
      return Status();
    }
    std::array<std::byte, kFalseDescriptorBytes> begin;
    if (payload.bytes != nullptr) {
      std::copy_n(payload.bytes, begin.size(), begin.begin());
    } else {
      HAULWAY_TRY(payload.source->ReadAt(payload.source_offset, begin));
    }
    ByteCursor cursor(begin);
    entry->has_false_descriptor = cursor.U32() == zip::kDescriptorSignature;
    entry->false_descriptor = cursor.U32();
    return Status();
  }

  // Encodes the record with the serialization id, and the directory.
  Status EncodeTail(std::span<const uint32_t> crc32,
                    std::span<std::byte> out) const {
    zip::NewEntry id = id_;
    const uint64_t header = id.payload_offset - id.header_offset;
    const uint64_t before_directory =
        header + zip::kIdBytes + zip::DescriptorBytes(id);
    ByteEncoder directory(out.subspan(before_directory));
    zip::SerializationId digits;
    for (size_t i = 0; i < names_.size(); ++i) {
      zip::NewEntry entry = EntryOf(i, crc32[i]);
      HAULWAY_TRY(NoteFalseDescriptor(payloads_[i], &entry));
      digits.Add(names_[i], entry);
      zip::EncodeDirectoryEntry(entry, options_.archive_name, &directory);
    }
    const std::string text = digits.Digits();
    const auto bytes = std::as_bytes(std::span<const char>(text));
    if (options_.compute_crc32) id.crc32 = Crc32(0, bytes);
    zip::EncodeLocalHeader(id, options_.archive_name, out.first(header));
    ByteEncoder(out.subspan(header)).Bytes(bytes);
    zip::EncodeDescriptor(
        id, out.first(before_directory).subspan(header + zip::kIdBytes));
    zip::EncodeDirectoryEntry(id, options_.archive_name, &directory);
    zip::EncodeEndRecordsOf(names_.size() + 1, directory_offset_, &directory);
    return Status();
  }

  const ArchiveWriterOptions options_;
  std::vector<std::string> names_;
  std::vector<uint64_t> headers_;  // Their offsets, parallel to names_.
  std::vector<Payload> payloads_;
  std::vector<Frame> frames_;
  zip::NewEntry id_;
  uint64_t directory_offset_ = 0;
  uint64_t size_ = 0;
};

// Fails with kInvalidArgument for a name that is not allowed or occurs twice.
Status CheckNames(std::span<const ArchiveRecord> records,
                  std::string_view folder) {
  NameIndex names;
  const auto name_of = [&](uint32_t i) -> std::string_view {
    return records[i].name;
  };
  for (uint32_t i = 0; i < records.size(); ++i) {
    const std::string& name = records[i].name;
    HAULWAY_TRY(zip::CheckName(name, folder));
    if (name == zip::kIdRecord ||
        names.Add(name, i, name_of) != NameIndex::kNone) {
      return Status(Code::kInvalidArgument,
                    fmt::format("record {} is written twice", Quote(name)));
    }
  }
  return Status();
}

}  // namespace

Result<std::unique_ptr<const Layout>> LayOutArchive(
    std::vector<ArchiveRecord> records, const ArchiveWriterOptions& options) {
  HAULWAY_TRY(zip::CheckAlignment(options.alignment));
  HAULWAY_TRY(CheckNames(records, options.archive_name));
  return std::unique_ptr<const Layout>(
      std::make_unique<const ArchiveLayout>(std::move(records), options));
}

}  // namespace haulway
