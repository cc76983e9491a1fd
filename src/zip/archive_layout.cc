#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <memory>
#include <utility>

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

class ArchiveLayout : public Layout {
 public:
  ArchiveLayout(std::vector<ArchiveRecord> records,
                const ArchiveWriterOptions& options)
      : options_(options) {
    uint64_t end = 0;
    entries_.reserve(records.size());
    payloads_.reserve(records.size());
    for (ArchiveRecord& record : records) {
      zip::NewEntry& entry = entries_.emplace_back();
      entry.name = std::move(record.name);
      entry.header_offset = end;
      entry.size = entry.stored_size = record.size;
      zip::Place(&entry, options_.archive_name, options_.alignment);
      if (record.bytes != nullptr && record.size >= kFalseDescriptorBytes) {
        NoteFalseDescriptor({record.bytes, kFalseDescriptorBytes}, &entry);
      }
      payloads_.push_back({entry.payload_offset, entry.size, record.bytes,
                           record.source, record.source_offset});
      end = entry.payload_end() + zip::DescriptorBytes(entry);
    }
    id_.name = zip::kIdRecord;
    id_.header_offset = end;
    id_.size = id_.stored_size = zip::kIdBytes;
    zip::Place(&id_, options_.archive_name, options_.alignment);
    directory_offset_ = id_.payload_end() + zip::DescriptorBytes(id_);
    size_ = directory_offset_ + zip::EndBytes(entries_, options_.archive_name) +
            zip::EndBytes(std::span(&id_, 1), options_.archive_name) -
            zip::EndBytes({}, options_.archive_name);
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
      zip::NewEntry before = entries_[frame - 1];
      before.crc32 = digests.crc32[frame - 1];
      zip::EncodeDescriptor(before, out);
      out = out.subspan(zip::DescriptorBytes(before));
    }
    if (frame == entries_.size()) return EncodeTail(digests.crc32, out);
    zip::EncodeLocalHeader(entries_[frame], options_.archive_name, out);
    return Status();
  }

 private:
  static void NoteFalseDescriptor(std::span<const std::byte> begin,
                                  zip::NewEntry* entry) {
    ByteCursor cursor(begin);
    entry->has_false_descriptor = cursor.U32() == zip::kDescriptorSignature;
    entry->false_descriptor = cursor.U32();
  }

  Status EncodeTail(std::span<const uint32_t> crc32,
                    std::span<std::byte> out) const {
    std::vector<zip::NewEntry> entries = entries_;
    for (size_t i = 0; i < entries.size(); ++i) {
      entries[i].crc32 = crc32[i];
      const Payload& payload = payloads_[i];
      if (payload.source == nullptr || payload.length < kFalseDescriptorBytes) {
        continue;
      }
      std::array<std::byte, kFalseDescriptorBytes> begin;
      HAULWAY_TRY(payload.source->ReadAt(payload.source_offset, begin));
      NoteFalseDescriptor(begin, &entries[i]);
    }
    zip::NewEntry id = id_;
    const std::string digits = zip::SerializationId(entries);
    const auto text = std::as_bytes(std::span<const char>(digits));
    if (options_.compute_crc32) id.crc32 = Crc32(0, text);
    const uint64_t header = id.payload_offset - id.header_offset;
    zip::EncodeLocalHeader(id, options_.archive_name, out.subspan(0, header));
    out = out.subspan(header);
    ByteEncoder(out).Bytes(text);
    out = out.subspan(zip::kIdBytes);
    zip::EncodeDescriptor(id, out);
    out = out.subspan(zip::DescriptorBytes(id));
    entries.push_back(std::move(id));
    zip::EncodeEnd(entries, options_.archive_name, directory_offset_, out);
    return Status();
  }

  const ArchiveWriterOptions options_;
  std::vector<zip::NewEntry> entries_;
  std::vector<Payload> payloads_;
  std::vector<Frame> frames_;
  zip::NewEntry id_;
  uint64_t directory_offset_ = 0;
  uint64_t size_ = 0;
};

}  // namespace

Result<std::unique_ptr<const Layout>> LayOutArchive(
    std::vector<ArchiveRecord> records, const ArchiveWriterOptions& options) {
  HAULWAY_TRY(zip::CheckAlignment(options.alignment));
  NameIndex names;
  const auto name_of = [&](uint32_t i) -> std::string_view {
    return records[i].name;
  };
  for (uint32_t i = 0; i < records.size(); ++i) {
    const std::string& name = records[i].name;
    HAULWAY_TRY(zip::CheckName(name, options.archive_name));
    if (name == zip::kIdRecord ||
        names.Add(name, i, name_of) != NameIndex::kNone) {
      return Status(Code::kInvalidArgument,
                    fmt::format("record {} is written twice", Quote(name)));
    }
  }
  return std::unique_ptr<const Layout>(
      std::make_unique<const ArchiveLayout>(std::move(records), options));
}

}  // namespace haulway
