#include "tensorizer/segment_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/checked.h"
#include "base/digest.h"
#include "base/text.h"
#include "haulway/limits.h"
#include "tensorizer/byte_writer.h"
#include "tensorizer/segment_notes.h"
#include "tensorizer/tensor_plan.h"

namespace haulway::tensorizer {

namespace {

constexpr HashRule kRule = HashRule::kWithoutHashes;
constexpr uint32_t kVersion = 5;
constexpr uint64_t kMaxRoom = 1'000'000'000;

uint64_t RoundUp(uint64_t value, uint64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

class SegmentWriter : public RecordLayout {
 public:
  explicit SegmentWriter(const TensorizerOptions& options)
      : options_(options), key_(options.key) {}

  Status Plan(std::span<const TensorizerInput> tensors) {
    HAULWAY_TRY(CheckOptions(options_));
    HAULWAY_TRY(CheckSegmentOptions());
    plans_.reserve(tensors.size());
    uint32_t version = 1;
    bool tagged = false;
    for (size_t i = 0; i < tensors.size(); ++i) {
      auto plan = PlanTensor(tensors[i], i, options_, kRule, &version);
      if (!plan.ok()) {
        return std::move(plan).status().In(fmt::format("tensor {}", i));
      }
      tagged = tagged || plan->fields.long_dims;
      plans_.push_back(*std::move(plan));
    }
    HAULWAY_TRY(CheckNames(plans_));
    if (tagged && pr170()) {
      return Status(Code::kUnsupported,
                    "this layout has no dimensions of 2^32 or more");
    }
    preamble_.version = kVersion;
    preamble_.flags = (key_.empty() ? 0 : kFlagEncrypted) |
                      (tagged ? kFlagTagged : 0) |
                      (pr170() ? 0 : kFlagSegments);
    preamble_.tagged = tagged;
    preamble_.count = plans_.size();
    HAULWAY_TRY(PlaceRecords());
    return pr170() ? FinishPr170() : Finish();
  }

  uint64_t size() const override { return size_; }
  uint64_t split() const override { return split_; }
  std::span<const FileRecord> records() const override { return records_; }
  std::span<const FixedBytes> fixed() const override { return fixed_; }
  std::unique_ptr<RecordEncoder> Start(size_t record) const override {
    return EncodeTensor(plans_[record], key_, kRule);
  }
  void DigestTogether(
      std::span<RecordEncoder* const> encoders,
      std::span<const std::span<const std::byte>> pieces) const override {
    DigestTensorsTogether(encoders, pieces);
  }

 private:
  bool pr170() const {
    return options_.layout == TensorizerLayout::kSegmentsPr170;
  }

  Status CheckSegmentOptions() const {
    const std::string& name = options_.data_file;
    if (options_.room_for > kMaxRoom) {
      return Status(Code::kInvalidArgument,
                    fmt::format("room_for is out of range: expected at most "
                                "{}, found {}",
                                kMaxRoom, options_.room_for));
    }
    if (options_.alignment > kSegmentBlockBytes ||
        kSegmentBlockBytes % options_.alignment != 0) {
      return Status(Code::kInvalidArgument,
                    fmt::format("alignment in segments is out of range: "
                                "expected a divisor of {}, found {}",
                                kSegmentBlockBytes, options_.alignment));
    }
    if (pr170() && (!name.empty() || !options_.metadata.empty())) {
      return Status(Code::kUnsupported,
                    "this layout has neither metadata nor a data file");
    }
    if (name.size() > kMaxDataFileName || !IsUtf8(name) ||
        name.find('/') != name.npos || name == "." || name == "..") {
      return Status(
          Code::kInvalidArgument,
          fmt::format("{} is no name of a file beside the index", Quote(name)));
    }
    return Status();
  }

  // Index entries, headers from 0 on, and data from 0 on.
  Status PlaceRecords() {
    uint64_t header = 0;
    uint64_t data = 0;
    const uint64_t step = std::max(options_.alignment, kDataStep);
    for (const TensorPlan& plan : plans_) {
      FileRecord& record = records_.emplace_back();
      const uint64_t bytes = plan.fields.data_bytes;
      record.header_offset = header;
      record.header_bytes = HeaderBytes(plan.fields, plan.header);
      if (bytes != 0 && !CheckedRoundUp(data, step, &data)) data = UINT64_MAX;
      record.payload_offset = data;
      record.payload_bytes = bytes;
      record.bytes = plan.bytes;
      header += record.header_bytes;
      if (!CheckedAdd(data, bytes, &data) || data > INT64_MAX / 2) {
        return Status(Code::kInvalidArgument, "tensors are too large");
      }
      preamble_.data_bytes += bytes;
      EncodeIndexEntry(plan.fields, preamble_.tagged, record.header_offset,
                       record.payload_offset, &index_);
    }
    header_bytes_ = header;
    data_bytes_ = data;
    return Status();
  }

  // Where the headers and the data begin is known now.
  void MoveRecords(uint64_t headers, uint64_t data) {
    for (FileRecord& record : records_) {
      record.header_offset += headers;
      record.payload_offset += data;
    }
    size_ = data + data_bytes_ + kEndMarkBytes;
    fixed_.push_back({data + data_bytes_, kEndMark});
  }

  Status Finish() {
    SegmentHead head;
    head.index.start = kSegmentBlockBytes;
    head.index.data_length = index_.size();
    head.index.crc32 = Crc32(0, index_);
    const uint64_t room = options_.room_for;
    head.index.end =
        RoundUp(head.index.start + index_.size() + room * kRoomInIndex,
                kSegmentBlockBytes);
    head.headers.start = head.index.end;
    head.headers.data_length = header_bytes_;
    head.headers.end =
        RoundUp(head.headers.start + header_bytes_ + room * kRoomInHeaders,
                kSegmentBlockBytes);
    uint64_t end = head.headers.end;
    if (!options_.metadata.empty()) {
      HAULWAY_ASSIGN(notes_, EncodeNotes(options_.metadata));
      Segment& notes = head.notes.emplace();
      notes.start = end;
      notes.data_length = notes_.size();
      notes.crc32 = Crc32(0, notes_);
      end = RoundUp(end + notes_.size(), kSegmentBlockBytes);
      notes.end = end;
    }
    head.data_file = options_.data_file;
    head.data.start = head.data_file.empty() ? end : 0;
    head.data.data_length = data_bytes_;
    head.data.end = head.data.start + data_bytes_ + kEndMarkBytes;
    if (!head.data_file.empty()) split_ = end;
    preamble_.segments = head;
    head_ = EncodeHead(preamble_);
    fixed_ = {{0, head_}, {head.index.start, index_}};
    if (!notes_.empty()) fixed_.push_back({head.notes->start, notes_});
    MoveRecords(head.headers.start, end);
    return Status();
  }

  Status FinishPr170() {
    const uint64_t room = options_.room_for;
    const uint64_t index_at = kSegmentIndexStart + 8;
    const uint64_t index_end =
        RoundUp(index_at + (room == 0 ? index_.size() : room * kRoomInIndex),
                kSegmentBlockBytes);
    const uint64_t header_end =
        RoundUp(index_end + (room == 0 ? header_bytes_ : room * kRoomInHeaders),
                kSegmentBlockBytes);
    if (index_at + index_.size() > index_end ||
        index_end + header_bytes_ > header_end) {
      return Status(Code::kInvalidArgument,
                    fmt::format("there is no room for {} tensors in segments "
                                "for {}",
                                plans_.size(), room));
    }
    preamble_.index_bytes = kLayoutBodyBytes;
    head_ = EncodePreamble(preamble_);
    ByteWriter out(&head_);
    out.U8(1);
    out.U8(3);
    out.U8(1);
    out.U64(kSegmentIndexStart);
    out.U64(index_end);
    out.U8(2);
    out.U64(index_end);
    out.U64(header_end);
    out.U8(3);
    out.U64(header_end);
    out.U64(index_.size());
    out.Bytes(index_);
    fixed_ = {{0, head_}};
    MoveRecords(index_end, header_end);
    return Status();
  }

  static constexpr std::array<std::byte, kEndMarkBytes> kEndMark{};

  const TensorizerOptions& options_;
  const Secret key_;
  Preamble preamble_;
  std::vector<TensorPlan> plans_;
  std::vector<FileRecord> records_;
  std::vector<std::byte> head_;
  std::vector<std::byte> index_;
  std::vector<std::byte> notes_;
  uint64_t header_bytes_ = 0;
  uint64_t data_bytes_ = 0;
  std::vector<FixedBytes> fixed_;
  uint64_t size_ = 0;
  uint64_t split_ = 0;
};

}  // namespace

std::vector<std::byte> EncodeHead(const Preamble& preamble) {
  std::vector<std::byte> head = EncodePreamble(preamble);
  head.resize(kLengthOffset);  // The length is the section's.
  const auto section = EncodeSegmentHead(*preamble.segments, head);
  head.insert(head.end(), section.begin(), section.end());
  head.resize(kSegmentHeadBytes);
  return head;
}

Result<std::unique_ptr<const RecordLayout>> LayOutSegments(
    std::span<const TensorizerInput> tensors,
    const TensorizerOptions& options) {
  auto writer = std::make_unique<SegmentWriter>(options);
  HAULWAY_TRY(writer->Plan(tensors));
  return std::unique_ptr<const RecordLayout>(std::move(writer));
}

}  // namespace haulway::tensorizer
