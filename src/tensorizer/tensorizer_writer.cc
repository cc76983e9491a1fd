#include "tensorizer/tensorizer_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/checked.h"
#include "haulway/options.h"
#include "tensorizer/segment_writer.h"
#include "tensorizer/tensor_plan.h"
#include "tensorizer/tensorizer_authentication.h"
#include "tensorizer/tensorizer_crypt.h"
#include "tensorizer/tensorizer_encode.h"
#include "tensorizer/tensorizer_layout.h"

namespace haulway {

namespace tensorizer {

namespace {

class Writer : public haulway::Layout {
 public:
  explicit Writer(const TensorizerOptions& options)
      : options_(options), key_(options.key) {
    if (encrypted() && options_.authenticate_metadata) {
      metadata_key_ = MetadataKey(key_);
    }
  }

  Status Place(std::vector<TensorPlan> plans, uint32_t version,
               uint64_t index_bytes) {
    plans_ = std::move(plans);
    preamble_.version = version;
    preamble_.index_bytes = index_bytes;
    HAULWAY_TRY(CheckNames(plans_));
    return Place();
  }

  uint64_t size() const override { return size_; }
  std::span<const Payload> payloads() const override { return payloads_; }
  // The head, a header before each payload, the end mark and, optionally, the
  // record that authenticates the headers.
  std::span<const Frame> frames() const override { return frames_; }
  Digesting digesting() const override { return Digesting::kInOrder; }
  Status EncodeFrame(size_t frame, const Digests& digests,
                     std::span<std::byte> out) const override {
    if (frame == 0) {
      std::ranges::copy(head_, out.begin());
    } else if (frame <= payloads_.size()) {
      std::ranges::copy(digests.of[frame - 1], out.begin());
    } else if (frame == payloads_.size() + 1) {
      std::ranges::fill(out, std::byte{0});  // The end mark.
    } else {
      EncodeTail(digests, out);
    }
    return Status();
  }
  std::unique_ptr<PayloadEncoder> Start(size_t payload) const override {
    return EncodeTensor(plans_[payload], key_, kRule);
  }
  void DigestTogether(
      std::span<PayloadEncoder* const> encoders,
      std::span<const std::span<const std::byte>> pieces) const override {
    DigestTensorsTogether(encoders, pieces);
  }

 private:
  static constexpr HashRule kRule = HashRule::kValuesZeroed;

  bool encrypted() const { return !key_.empty(); }
  bool authenticated() const { return !metadata_key_.empty(); }

  void EncodeTail(const Digests& digests, std::span<std::byte> out) const {
    std::vector<HeaderTag> tags;
    tags.reserve(payloads_.size());
    for (size_t i = 0; i < payloads_.size(); ++i) {
      tags.push_back(TagHeader(metadata_key_, i, digests.of[i]));
    }
    std::ranges::copy(EncodeAuthentication(metadata_key_,
                                           DerivationOf(options_), head_, tags),
                      out.begin());
  }

  Status Place() {
    const bool tagged = preamble_.version == 5;
    if (preamble_.version >= 4 && encrypted()) {
      preamble_.flags |= kFlagEncrypted;
    }
    if (tagged) preamble_.flags |= kFlagTagged;
    if (preamble_.index_bytes == 0) {
      preamble_.index_bytes = IndexBytes(plans_, preamble_.version);
    }
    preamble_.count = plans_.size();
    uint64_t at = kIndexOffset + preamble_.index_bytes;
    std::vector<std::byte> index;
    index.reserve(preamble_.index_bytes);
    payloads_.reserve(plans_.size());
    frames_.reserve(plans_.size() + 3);
    frames_.push_back({0, at});
    for (size_t i = 0; i < plans_.size(); ++i) {
      TensorPlan& plan = plans_[i];
      const uint64_t header = at;
      uint64_t end = header + HeaderBytes(plan.fields, plan.header);
      const uint64_t over = end % options_.alignment;
      plan.header.padding = over == 0 ? 0 : options_.alignment - over;
      end += plan.header.padding;
      frames_.push_back({header, end - header, Needs::kPayload, i});
      payloads_.push_back(plan.PayloadAt(end));
      if (!CheckedAdd(end, plan.fields.data_bytes, &at) || at > INT64_MAX) {
        return Status(Code::kInvalidArgument, "tensors are too large");
      }
      preamble_.data_bytes += plan.fields.data_bytes;
      EncodeIndexEntry(plan.fields, tagged, header, end, &index);
    }
    head_ = EncodePreamble(preamble_);
    head_.insert(head_.end(), index.begin(), index.end());
    head_.resize(kIndexOffset + preamble_.index_bytes);
    frames_.push_back({at, kEndMarkBytes});
    size_ = at + kEndMarkBytes;
    if (authenticated()) {
      const uint64_t bytes =
          AuthenticationBytes(options_.derivation.has_value(), plans_.size());
      frames_.push_back({size_, bytes, Needs::kAll});
      size_ += bytes;
    }
    return Status();
  }

  const TensorizerOptions options_;
  const Secret key_;
  Secret metadata_key_;  // Empty if metadata is not authenticated.
  Preamble preamble_;
  std::vector<TensorPlan> plans_;
  std::vector<Payload> payloads_;
  std::vector<Frame> frames_;
  std::vector<std::byte> head_;
  uint64_t size_ = 0;
};

}  // namespace

uint64_t IndexBytes(std::span<const TensorPlan> plans, uint32_t version) {
  uint64_t bytes = 0;
  for (const TensorPlan& plan : plans) {
    bytes += IndexEntryBytes(plan.fields, /*tagged=*/version == 5);
  }
  if (bytes <= kReservedIndexBytes) return kReservedIndexBytes;
  return (bytes + kIndexStep - 1) / kIndexStep * kIndexStep;
}

Result<std::unique_ptr<const haulway::Layout>> LayOutPlans(
    std::vector<TensorPlan> plans, uint32_t version,
    const TensorizerOptions& options, uint64_t index_bytes) {
  if (options.layout != TensorizerLayout::kInterleaved) {
    return LayOutSegments(std::move(plans), options);
  }
  auto writer = std::make_unique<Writer>(options);
  HAULWAY_TRY(writer->Place(std::move(plans), version, index_bytes));
  return std::unique_ptr<const haulway::Layout>(std::move(writer));
}

}  // namespace tensorizer

TensorizerDerivation NewTensorizerDerivation() {
  const tensorizer::Nonce random = tensorizer::RandomNonce();
  TensorizerDerivation derivation;
  derivation.operations = 3;
  derivation.memory_bytes = 256 * kMiB;
  std::copy_n(random.begin(), derivation.salt.size(), derivation.salt.begin());
  return derivation;
}

Result<std::unique_ptr<const Layout>> LayOutTensorizer(
    std::span<const TensorizerInput> tensors,
    const TensorizerOptions& options) {
  HAULWAY_TRY(tensorizer::CheckOptions(options));
  uint32_t version = tensorizer::LowestVersion(options);
  HAULWAY_ASSIGN(auto plans, tensorizer::PlanTensors(
                                 tensors, 0, options,
                                 tensorizer::RuleOf(options), &version));
  return tensorizer::LayOutPlans(std::move(plans), version, options);
}

}  // namespace haulway
