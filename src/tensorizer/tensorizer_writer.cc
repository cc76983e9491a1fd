#include "haulway/tensorizer_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/checked.h"
#include "haulway/limits.h"
#include "tensorizer/segment_writer.h"
#include "tensorizer/tensor_plan.h"
#include "tensorizer/tensorizer_authentication.h"
#include "tensorizer/tensorizer_crypt.h"
#include "tensorizer/tensorizer_encode.h"

namespace haulway {

namespace tensorizer {

namespace {

constexpr uint64_t kIndexStep = 4 * kKiB;

class Writer : public RecordLayout {
 public:
  Writer(std::span<const TensorizerInput> tensors,
         const TensorizerOptions& options)
      : tensors_(tensors), options_(options), key_(options.key) {}

  Status Plan() {
    HAULWAY_TRY(CheckOptions(options_));
    if (encrypted() && options_.authenticate_metadata) {
      metadata_key_ = MetadataKey(key_);
      tags_.resize(tensors_.size());
    }
    plans_.reserve(tensors_.size());
    preamble_.version = encrypted() ? 3 : 1;
    for (size_t i = 0; i < tensors_.size(); ++i) {
      auto plan =
          PlanTensor(tensors_[i], i, options_, kRule, &preamble_.version);
      if (!plan.ok()) {
        return std::move(plan).status().In(fmt::format("tensor {}", i));
      }
      plans_.push_back(*std::move(plan));
    }
    HAULWAY_TRY(CheckNames(plans_));
    return Place();
  }

  uint64_t size() const override { return size_; }
  std::span<const FileRecord> records() const override { return records_; }
  std::span<const FixedBytes> fixed() const override { return fixed_; }
  std::unique_ptr<RecordEncoder> Start(size_t record) const override {
    HeaderTagging tagging{&metadata_key_, record};
    // Its own slot; two encoders of one record, one after the other, fill it
    // with the same.
    if (authenticated()) tagging.tag = &tags_[record];
    return EncodeTensor(plans_[record], key_, kRule, tagging);
  }
  void DigestTogether(
      std::span<RecordEncoder* const> encoders,
      std::span<const std::span<const std::byte>> pieces) const override {
    DigestTensorsTogether(encoders, pieces);
  }
  std::vector<std::byte> Tail() const override {
    if (!authenticated()) return {};
    return EncodeAuthentication(metadata_key_, DerivationOf(options_), head_,
                                tags_);
  }

 private:
  static constexpr HashRule kRule = HashRule::kValuesZeroed;
  static constexpr std::array<std::byte, kEndMarkBytes> kEndMark{};

  bool encrypted() const { return !key_.empty(); }
  bool authenticated() const { return !metadata_key_.empty(); }

  Status Place() {
    const bool tagged = preamble_.version == 5;
    if (preamble_.version >= 4 && encrypted()) {
      preamble_.flags |= kFlagEncrypted;
    }
    if (tagged) preamble_.flags |= kFlagTagged;
    uint64_t index_bytes = 0;
    for (const TensorPlan& plan : plans_) {
      index_bytes += IndexEntryBytes(plan.fields, tagged);
    }
    preamble_.index_bytes = kReservedIndexBytes;
    if (index_bytes > kReservedIndexBytes) {
      preamble_.index_bytes =
          (index_bytes + kIndexStep - 1) / kIndexStep * kIndexStep;
    }
    preamble_.count = plans_.size();
    uint64_t at = kIndexOffset + preamble_.index_bytes;
    std::vector<std::byte> index;
    index.reserve(preamble_.index_bytes);
    for (size_t i = 0; i < plans_.size(); ++i) {
      TensorPlan& plan = plans_[i];
      FileRecord& record = records_.emplace_back();
      record.header_offset = at;
      uint64_t end =
          at + EncodedHeader(plan.fields, plan.header).bytes().size();
      const uint64_t over = end % options_.alignment;
      plan.header.padding = over == 0 ? 0 : options_.alignment - over;
      end += plan.header.padding;
      record.payload_offset = end;
      record.payload_bytes = plan.fields.data_bytes;
      record.bytes = plan.bytes;
      if (!CheckedAdd(end, plan.fields.data_bytes, &at) || at > INT64_MAX) {
        return Status(Code::kInvalidArgument, "tensors are too large");
      }
      preamble_.data_bytes += plan.fields.data_bytes;
      EncodeIndexEntry(plan.fields, tagged, record.header_offset,
                       record.payload_offset, &index);
    }
    head_ = EncodePreamble(preamble_);
    head_.insert(head_.end(), index.begin(), index.end());
    head_.resize(kIndexOffset + preamble_.index_bytes);
    fixed_ = {{0, head_}, {at, kEndMark}};
    size_ = at + kEndMarkBytes;
    if (authenticated()) {
      size_ +=
          AuthenticationBytes(options_.derivation.has_value(), plans_.size());
    }
    return Status();
  }

  const std::span<const TensorizerInput> tensors_;
  const TensorizerOptions& options_;
  const Secret key_;
  Secret metadata_key_;  // Empty: metadata is not authenticated.
  mutable std::vector<HeaderTag> tags_;
  Preamble preamble_;
  std::vector<TensorPlan> plans_;
  std::vector<FileRecord> records_;
  std::vector<std::byte> head_;
  std::vector<FixedBytes> fixed_;
  uint64_t size_ = 0;
};

}  // namespace

}  // namespace tensorizer

TensorizerDerivation NewTensorizerDerivation() {
  const tensorizer::Nonce random = tensorizer::RandomNonce();
  TensorizerDerivation derivation;
  derivation.operations = 3;
  derivation.memory_bytes = 256 * kMiB;
  std::copy_n(random.begin(), derivation.salt.size(), derivation.salt.begin());
  return derivation;
}

Result<std::unique_ptr<const RecordLayout>> LayOutTensorizer(
    std::span<const TensorizerInput> tensors,
    const TensorizerOptions& options) {
  if (options.layout != TensorizerLayout::kInterleaved) {
    return tensorizer::LayOutSegments(tensors, options);
  }
  auto writer = std::make_unique<tensorizer::Writer>(tensors, options);
  HAULWAY_TRY(writer->Plan());
  return std::unique_ptr<const RecordLayout>(std::move(writer));
}

}  // namespace haulway
