#include "tensorizer/segment_append.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/thread_pool.h"
#include "haulway/machine.h"
#include "haulway/options.h"
#include "tensorizer/segment_place.h"
#include "tensorizer/tensorizer_layout.h"

namespace haulway::tensorizer {

namespace {

constexpr uint64_t kPieceBytes = kMiB;

}  // namespace

Status SegmentAppend::Plan(std::span<const TensorizerInput> tensors,
                           const TensorizerOptions& options) {
  HAULWAY_TRY(CheckOptions(options));
  key_ = options.key;
  uint32_t version = 1;
  for (size_t i = 0; i < tensors.size(); ++i) {
    auto plan = PlanTensor(tensors[i], i, options, kSegmentHashes, &version);
    if (!plan.ok()) {
      return std::move(plan).status().In(fmt::format("tensor {}", i));
    }
    long_dims_ = long_dims_ || plan->fields.long_dims;
    plans_.push_back(*std::move(plan));
  }
  return Status();
}

uint64_t SegmentAppend::data_bytes() const {
  uint64_t bytes = 0;
  for (const TensorPlan& plan : plans_) bytes += plan.fields.data_bytes;
  return bytes;
}

uint64_t SegmentAppend::index_bytes(bool tagged) const {
  uint64_t bytes = 0;
  for (const TensorPlan& plan : plans_) {
    bytes += IndexEntryBytes(plan.fields, tagged);
  }
  return bytes;
}

uint64_t SegmentAppend::header_bytes() const {
  uint64_t bytes = 0;
  for (const TensorPlan& plan : plans_) {
    bytes += HeaderBytes(plan.fields, plan.header);
  }
  return bytes;
}

Result<uint64_t> SegmentAppend::WriteData(EditableFile& file, uint64_t start,
                                          uint64_t at, uint64_t alignment,
                                          int threads) {
  std::vector<uint64_t> places;
  for (const TensorPlan& plan : plans_) {
    HAULWAY_ASSIGN(const uint64_t place,
                   PlaceData(plan.fields.data_bytes, alignment, &at));
    places.push_back(place);
    data_offsets_.push_back(place - start);
  }
  headers_.resize(plans_.size());
  HAULWAY_TRY(
      ParallelFor(plans_.size(), threads > 0 ? threads : UsableCpus(),
                  [&](uint64_t i) { return WriteTensor(file, i, places[i]); }));
  static constexpr std::array<std::byte, kEndMarkBytes> kEndMark{};
  HAULWAY_TRY(file.WriteAt(at, kEndMark));
  return at;
}

Status SegmentAppend::WriteTensor(EditableFile& file, size_t i,
                                  uint64_t place) {
  const TensorPlan& plan = plans_[i];
  const auto encoder = EncodeTensor(plan, key_, kSegmentHashes);
  const uint64_t unit = encoder->unit_bytes();
  const uint64_t step = std::max(unit, kPieceBytes);
  const uint64_t bytes = plan.fields.data_bytes;
  std::vector<std::byte> scratch(unit != 0 ? std::min(step, bytes) : 0);
  for (uint64_t done = 0; done < bytes; done += step) {
    const std::span<const std::byte> piece(plan.bytes + done,
                                           std::min(step, bytes - done));
    encoder->Digest(piece);
    std::span<const std::byte> stored = piece;
    if (unit != 0) {
      const auto out = std::span(scratch).first(piece.size());
      encoder->Encode(piece, out);
      stored = out;
    }
    HAULWAY_TRY(file.WriteAt(place + done, stored));
  }
  headers_[i] = encoder->Finish();
  return Status();
}

void SegmentAppend::AddTo(uint64_t header_offset, bool tagged,
                          std::vector<std::byte>* index,
                          std::vector<std::byte>* headers) const {
  for (size_t i = 0; i < plans_.size(); ++i) {
    EncodeIndexEntry(plans_[i].fields, tagged, header_offset, data_offsets_[i],
                     index);
    headers->insert(headers->end(), headers_[i].begin(), headers_[i].end());
    header_offset += headers_[i].size();
  }
}

}  // namespace haulway::tensorizer
