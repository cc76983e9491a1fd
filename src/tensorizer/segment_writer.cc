// Design: a file in segments is laid out in one pass. The sizes of index
// entries and headers follow from the tensors, so the segments are placed one
// after another from the first block on, each followed by room for more
// tensors. The data is last, or in a separate file. Headers hold digests of
// their payloads, so they are encoded when these are known; everything else is
// fixed. The form of PR #170 is the same with its own head and its own rule for
// room.
//
// Alternatives not taken: without room, the first append would move everything;
// room as a percentage of the file does not fit, because a model grows by whole
// tensors. segment_place.h computes the places, for edits too.

#include "tensorizer/segment_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/digest.h"
#include "base/text.h"
#include "haulway/options.h"
#include "tensorizer/byte_writer.h"
#include "tensorizer/segment_notes.h"
#include "tensorizer/segment_place.h"
#include "tensorizer/tensor_plan.h"
#include "tensorizer/tensorizer_layout.h"

namespace haulway::tensorizer {

namespace {

constexpr uint32_t kVersion = 5;
constexpr uint64_t kMaxRoom = 1'000'000'000;

class SegmentWriter : public haulway::Layout {
 public:
  explicit SegmentWriter(const TensorizerOptions& options)
      : options_(options), key_(options.key) {}

  Status Place(std::vector<TensorPlan> plans) {
    HAULWAY_TRY(CheckSegmentOptions());
    plans_ = std::move(plans);
    bool tagged = false;
    for (const TensorPlan& plan : plans_) {
      tagged = tagged || plan.fields.long_dims;
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
    HAULWAY_TRY(PlaceTensors());
    return pr170() ? FinishPr170() : Finish();
  }

  uint64_t size() const override { return size_; }
  uint64_t split() const override { return split_; }
  std::span<const Payload> payloads() const override { return payloads_; }
  // The fixed parts before the headers, one header per payload, and the fixed
  // parts after them.
  std::span<const Frame> frames() const override { return frames_; }
  Digesting digesting() const override { return Digesting::kInOrder; }
  Status EncodeFrame(size_t frame, const Digests& digests,
                     std::span<std::byte> out) const override {
    if (frames_[frame].needs == Needs::kPayload) {
      std::ranges::copy(digests.of[frames_[frame].payload], out.begin());
      return Status();
    }
    const size_t fixed =
        frame < before_headers_ ? frame : frame - payloads_.size();
    std::ranges::copy(fixed_[fixed], out.begin());
    return Status();
  }
  std::unique_ptr<PayloadEncoder> Start(size_t payload) const override {
    return EncodeTensor(plans_[payload], key_, kSegmentHashes);
  }
  void DigestTogether(
      std::span<PayloadEncoder* const> encoders,
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

  // Places index entries, headers relative to 0, and data relative to 0.
  Status PlaceTensors() {
    uint64_t header = 0;
    uint64_t data = 0;
    headers_.reserve(plans_.size());
    payloads_.reserve(plans_.size());
    for (size_t i = 0; i < plans_.size(); ++i) {
      const TensorPlan& plan = plans_[i];
      const uint64_t bytes = plan.fields.data_bytes;
      HAULWAY_ASSIGN(const uint64_t place,
                     PlaceData(bytes, options_.alignment, &data));
      headers_.push_back(
          {header, HeaderBytes(plan.fields, plan.header), Needs::kPayload, i});
      payloads_.push_back(plan.PayloadAt(place));
      EncodeIndexEntry(plan.fields, preamble_.tagged, header, place, &index_);
      header += headers_.back().length;
      preamble_.data_bytes += bytes;
    }
    header_bytes_ = header;
    data_bytes_ = data;
    return Status();
  }

  void AddFixed(uint64_t offset, std::span<const std::byte> bytes) {
    frames_.push_back({offset, bytes.size()});
    fixed_.push_back(bytes);
  }

  // Adds the headers, now that their start is known. The fixed frames before
  // them must have been added.
  void AddHeaders(uint64_t headers) {
    before_headers_ = frames_.size();
    for (Frame& header : headers_) {
      header.offset += headers;
      frames_.push_back(header);
    }
  }
  void AddData(uint64_t data) {
    for (Payload& payload : payloads_) payload.offset += data;
    size_ = data + data_bytes_ + kEndMarkBytes;
    AddFixed(data + data_bytes_, kEndMark);
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
    AddFixed(0, head_);
    AddFixed(head.index.start, index_);
    AddHeaders(head.headers.start);
    if (!notes_.empty()) AddFixed(head.notes->start, notes_);
    AddData(end);
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
    AddFixed(0, head_);
    AddHeaders(index_end);
    AddData(header_end);
    return Status();
  }

  static constexpr std::array<std::byte, kEndMarkBytes> kEndMark{};

  const TensorizerOptions options_;
  const Secret key_;
  Preamble preamble_;
  std::vector<TensorPlan> plans_;
  std::vector<Payload> payloads_;
  std::vector<Frame> headers_;
  std::vector<Frame> frames_;
  size_t before_headers_ = 0;  // Number of frames.
  std::vector<std::byte> head_;
  std::vector<std::byte> index_;
  std::vector<std::byte> notes_;
  uint64_t header_bytes_ = 0;
  uint64_t data_bytes_ = 0;
  // Contents of the other frames.
  std::vector<std::span<const std::byte>> fixed_;
  uint64_t size_ = 0;
  uint64_t split_ = 0;
};

}  // namespace

std::vector<std::byte> EncodeHead(const Preamble& preamble) {
  std::vector<std::byte> head = EncodePreamble(preamble);
  head.resize(kLengthOffset);  // The section adds its own length.
  const auto section = EncodeSegmentHead(*preamble.segments, head);
  head.insert(head.end(), section.begin(), section.end());
  head.resize(kSegmentHeadBytes);
  return head;
}

Result<std::unique_ptr<const haulway::Layout>> LayOutSegments(
    std::vector<TensorPlan> plans, const TensorizerOptions& options) {
  auto writer = std::make_unique<SegmentWriter>(options);
  HAULWAY_TRY(writer->Place(std::move(plans)));
  return std::unique_ptr<const haulway::Layout>(std::move(writer));
}

}  // namespace haulway::tensorizer
