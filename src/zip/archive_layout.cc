#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "base/cursor.h"
#include "base/digest.h"
#include "base/encoder.h"
#include "base/name_index.h"
#include "base/text.h"
#include "haulway/archive.h"
#include "zip/zip_writer.h"

namespace haulway {

namespace {

class ArchiveLayout : public FileLayout {
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
      if (record.bytes != nullptr && record.size >= 8) {
        ByteCursor cursor({record.bytes, 8});
        entry.has_false_descriptor = cursor.U32() == zip::kDescriptorSignature;
        entry.false_descriptor = cursor.U32();
      }
      payloads_.push_back({entry.payload_offset, entry.size, record.bytes});
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
  }

  uint64_t size() const override { return size_; }
  std::span<const Payload> payloads() const override { return payloads_; }
  bool wants_crc32() const override { return options_.compute_crc32; }

  Status EncodeGap(size_t gap, std::span<const uint32_t> crc32,
                   std::span<std::byte> out) const override {
    if (gap > 0) {
      zip::NewEntry before = entries_[gap - 1];
      before.crc32 = crc32[gap - 1];
      zip::EncodeDescriptor(before, out);
      out = out.subspan(zip::DescriptorBytes(before));
    }
    if (gap < entries_.size()) {
      zip::EncodeLocalHeader(entries_[gap], options_.archive_name, out);
    } else {
      EncodeTail(crc32, out);
    }
    return Status();
  }

 private:
  void EncodeTail(std::span<const uint32_t> crc32,
                  std::span<std::byte> out) const {
    std::vector<zip::NewEntry> entries = entries_;
    for (size_t i = 0; i < entries.size(); ++i) entries[i].crc32 = crc32[i];
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
  }

  const ArchiveWriterOptions options_;
  std::vector<zip::NewEntry> entries_;
  std::vector<Payload> payloads_;
  zip::NewEntry id_;
  uint64_t directory_offset_ = 0;
  uint64_t size_ = 0;
};

}  // namespace

Result<std::unique_ptr<const FileLayout>> LayOutArchive(
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
  return std::unique_ptr<const FileLayout>(
      std::make_unique<const ArchiveLayout>(std::move(records), options));
}

}  // namespace haulway
