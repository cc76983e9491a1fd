// Design: an npz is laid out as Python's zipfile writes it for numpy.savez(),
// with a zip64 field in every local header, so equal tensors make equal files.
// The CRC-32 of an array precedes it, so payloads are digested in order. Each
// has an encoder that begins with the npy header.
//
// Alternative not taken: descriptors behind the payloads, as in torch's
// archives, would allow digesting pieces in any order, but the files would
// differ from NumPy's. zip_writer.cc writes torch's variant: padding, no dates,
// descriptors. Both share the end records.

#include "npy/npy_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/digest.h"
#include "base/encoder.h"
#include "base/text.h"
#include "npy/npy_header.h"
#include "zip/zip_format.h"

namespace haulway::npy {

namespace {

constexpr std::string_view kSuffix = ".npy";
constexpr uint64_t kMax16 = 0xFFFF;
constexpr uint64_t kMax32 = 0xFFFFFFFF;
// From this size on, Python's zipfile uses 64-bit fields.
constexpr uint64_t kZip64Limit = 0x7FFFFFFF;
constexpr uint16_t kVersion = 45;                // APPNOTE 4.4.3: zip64.
constexpr uint16_t kMadeBy = 3 << 8 | kVersion;  // APPNOTE 4.4.2: Unix.
constexpr uint16_t kFlagUtf8 = 1 << 11;
constexpr uint16_t kFirstDay = 1 << 5 | 1;  // 1 January 1980.
constexpr uint32_t kAttributes = uint32_t{0600} << 16;
constexpr uint64_t kLocalExtraBytes = 20;  // Both sizes.

struct Record {
  std::string name;
  std::string head;  // The npy header.
  uint64_t data_bytes = 0;
  uint64_t header_offset = 0;
  size_t payload = 0;  // Valid if data_bytes is not 0.

  uint64_t size() const { return head.size() + data_bytes; }
  uint64_t local_bytes() const {
    return zip::kLocalHeaderBytes + name.size() + kLocalExtraBytes;
  }
  uint16_t flags() const {
    return std::ranges::all_of(
               name, [](char c) { return static_cast<uint8_t>(c) < 0x80; })
               ? 0
               : kFlagUtf8;
  }
  uint64_t directory_extra_bytes() const {
    const uint64_t fields =
        (size() > kZip64Limit ? 2 : 0) + (header_offset > kZip64Limit ? 1 : 0);
    return fields == 0 ? 0 : 4 + 8 * fields;
  }
};

void EncodeLocal(const Record& record, uint32_t crc32, ByteEncoder* out) {
  out->Text(std::string_view("PK\3\4", 4));
  out->U16(kVersion);
  out->U16(record.flags());
  out->U16(zip::kMethodStored);
  out->U16(0);  // Midnight.
  out->U16(kFirstDay);
  out->U32(crc32);
  out->U32(kMax32);
  out->U32(kMax32);
  out->U16(record.name.size());
  out->U16(kLocalExtraBytes);
  out->Text(record.name);
  out->U16(1);
  out->U16(kLocalExtraBytes - 4);
  out->U64(record.size());
  out->U64(record.size());
  out->Text(record.head);
}

void EncodeEntry(const Record& record, uint32_t crc32, ByteEncoder* out) {
  const bool big = record.size() > kZip64Limit;
  const bool far = record.header_offset > kZip64Limit;
  const uint64_t extra = record.directory_extra_bytes();
  out->Text(std::string_view("PK\1\2", 4));
  out->U16(kMadeBy);
  out->U16(kVersion);
  out->U16(record.flags());
  out->U16(zip::kMethodStored);
  out->U16(0);
  out->U16(kFirstDay);
  out->U32(crc32);
  out->U32(big ? kMax32 : record.size());
  out->U32(big ? kMax32 : record.size());
  out->U16(record.name.size());
  out->U16(extra);
  out->Fill(6, 0);  // Comment, disk, internal attributes.
  out->U32(kAttributes);
  out->U32(far ? kMax32 : record.header_offset);
  out->Text(record.name);
  if (extra == 0) return;
  out->U16(1);
  out->U16(extra - 4);
  if (big) out->U64(record.size());
  if (big) out->U64(record.size());
  if (far) out->U64(record.header_offset);
}

class CrcEncoder : public PayloadEncoder {
 public:
  explicit CrcEncoder(uint32_t crc32) : crc32_(crc32) {}
  uint64_t unit_bytes() const override { return 0; }
  void Digest(std::span<const std::byte> piece) override {
    crc32_ = Crc32(crc32_, piece);
  }
  void Encode(std::span<const std::byte>, std::span<std::byte>) override {}
  std::vector<std::byte> Finish() override {
    std::vector<std::byte> digest(4);
    ByteEncoder(digest).U32(crc32_);
    return digest;
  }

 private:
  uint32_t crc32_;
};

class NpzLayout : public Layout {
 public:
  void Add(std::string name, std::string head, const BytesToWrite& bytes) {
    Record& record = records_.emplace_back();
    record.name = std::move(name);
    record.head = std::move(head);
    record.data_bytes = bytes.length;
    record.header_offset = end_;
    const uint64_t before = record.local_bytes() + record.head.size();
    frames_.push_back({end_, before, Needs::kNothing, 0});
    end_ += before;
    if (bytes.length == 0) return;
    record.payload = payloads_.size();
    of_.push_back(records_.size() - 1);
    frames_.back().needs = Needs::kPayload;
    frames_.back().payload = payloads_.size();
    payloads_.push_back({end_, bytes.length, bytes.bytes, bytes.source.get(),
                         bytes.source_offset});
    end_ += bytes.length;
  }

  void Finish() {
    for (const Record& record : records_) {
      directory_bytes_ += zip::kDirectoryEntryBytes + record.name.size() +
                          record.directory_extra_bytes();
    }
    size_ = end_ + directory_bytes_ + zip::kEndBytes;
    if (has_zip64_end()) size_ += zip::kZip64EndBytes + zip::kZip64LocatorBytes;
    frames_.push_back({end_, size_ - end_,
                       payloads_.empty() ? Needs::kNothing : Needs::kAll, 0});
  }

  uint64_t size() const override { return size_; }
  std::span<const Payload> payloads() const override { return payloads_; }
  std::span<const Frame> frames() const override { return frames_; }
  Digesting digesting() const override { return Digesting::kInOrder; }
  std::unique_ptr<PayloadEncoder> Start(size_t payload) const override {
    return std::make_unique<CrcEncoder>(HeadCrc32(records_[of_[payload]]));
  }

  Status EncodeFrame(size_t frame, const Digests& digests,
                     std::span<std::byte> out) const override {
    ByteEncoder encoder(out);
    if (frame < records_.size()) {
      const Record& record = records_[frame];
      EncodeLocal(record, CrcOf(record, digests), &encoder);
      return Status();
    }
    for (const Record& record : records_) {
      EncodeEntry(record, CrcOf(record, digests), &encoder);
    }
    zip::EncodeEndRecords(
        {.entries = records_.size(),
         .directory_offset = end_,
         .directory_bytes = directory_bytes_,
         .end_offset = end_ + directory_bytes_},
        has_zip64_end() ? std::optional(zip::Zip64Versions{}) : std::nullopt,
        &encoder);
    return Status();
  }

 private:
  bool has_zip64_end() const {
    return records_.size() > kMax16 || end_ > kZip64Limit ||
           directory_bytes_ > kZip64Limit;
  }
  static uint32_t HeadCrc32(const Record& record) {
    return Crc32(0, std::as_bytes(std::span(record.head)));
  }
  static uint32_t CrcOf(const Record& record, const Digests& digests) {
    if (record.data_bytes == 0) return HeadCrc32(record);
    uint32_t crc32 = 0;
    std::memcpy(&crc32, digests.of[record.payload].data(), sizeof(crc32));
    return crc32;
  }

  std::vector<Record> records_;
  std::vector<Payload> payloads_;
  std::vector<size_t> of_;  // Record of each payload.
  std::vector<Frame> frames_;
  uint64_t end_ = 0;  // End of the last record, where the directory begins.
  uint64_t directory_bytes_ = 0;
  uint64_t size_ = 0;
};

class NpyLayout : public Layout {
 public:
  NpyLayout(std::string head, const BytesToWrite& bytes)
      : head_(std::move(head)),
        frame_{0, head_.size()},
        payload_{head_.size(), bytes.length, bytes.bytes, bytes.source.get(),
                 bytes.source_offset} {}
  uint64_t size() const override { return payload_.end(); }
  std::span<const Payload> payloads() const override {
    return {&payload_, payload_.length == 0 ? size_t{0} : size_t{1}};
  }
  std::span<const Frame> frames() const override { return {&frame_, 1}; }
  Status EncodeFrame(size_t, const Digests&,
                     std::span<std::byte> out) const override {
    std::memcpy(out.data(), head_.data(), out.size());
    return Status();
  }

 private:
  const std::string head_;
  const Frame frame_;
  const Payload payload_;
};

Status CheckOptions(const SaveOptions& options) {
  if (!options.alignment.has_value()) return Status();
  return Status(Code::kUnsupported,
                "NumPy's files have no alignment that can be chosen");
}

}  // namespace

Result<std::unique_ptr<const Layout>> LayOutNpy(const TensorsToWrite& tensors,
                                                const SaveOptions& options) {
  HAULWAY_TRY(CheckOptions(options));
  if (tensors.tensors.size() != 1) {
    return Status(Code::kUnsupported,
                  fmt::format("an npy file holds one array: expected 1 tensor, "
                              "found {}",
                              tensors.tensors.size()));
  }
  const TensorToWrite& tensor = tensors.tensors[0];
  auto head = EncodeHeader(tensor.dtype, tensor.shape);
  if (!head.ok()) return std::move(head).status().In(Quote(tensor.name));
  return std::unique_ptr<const Layout>(
      std::make_unique<NpyLayout>(*std::move(head), tensor.bytes));
}

Result<std::unique_ptr<const Layout>> LayOutNpz(const TensorsToWrite& tensors,
                                                const SaveOptions& options) {
  HAULWAY_TRY(CheckOptions(options));
  auto layout = std::make_unique<NpzLayout>();
  for (const TensorToWrite& tensor : tensors.tensors) {
    auto head = EncodeHeader(tensor.dtype, tensor.shape);
    if (!head.ok()) return std::move(head).status().In(Quote(tensor.name));
    std::string name = tensor.name + std::string(kSuffix);
    Status status = zip::CheckName(name, zip::NameRule::kKeys);
    if (!status.ok()) return std::move(status).In(Quote(tensor.name));
    layout->Add(std::move(name), *std::move(head), tensor.bytes);
  }
  layout->Finish();
  return std::unique_ptr<const Layout>(std::move(layout));
}

}  // namespace haulway::npy
