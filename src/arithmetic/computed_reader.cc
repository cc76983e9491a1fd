// Design: the result is a flat dict over the stored one. Its tensors
// that stay are the stored ones; a weight that is computed is a storage of its
// own behind the stored bytes (computed_source.h). So everything that reads a
// checkpoint reads such a one, slices included, and knows no quantization.
// Writing plain weights to a temporary file was left out: it takes the disk
// that the user wants to save. CRC-32s of stored tensors are compared before
// their first use, because those of the result are not known.

#include "arithmetic/computed_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <string_view>
#include <utility>
#include <vector>

#include "arithmetic/computed_source.h"
#include "base/digest.h"
#include "base/text.h"
#include "decode/encoding_traits.h"
#include "format/flat_reader.h"
#include "haulway/index.h"
#include "haulway/options.h"
#include "haulway/tree.h"

namespace haulway::arithmetic {

namespace {

class ComputedReader final : public FormatReader {
 public:
  static Result<std::unique_ptr<const FormatReader>> Make(
      std::shared_ptr<const FormatReader> stored, FoundWeights found) {
    std::unique_ptr<ComputedReader> made(new ComputedReader(std::move(stored)));
    HAULWAY_ASSIGN(
        made->computed_,
        ComputedSource::Make(made->stored_, std::move(found.weights)));
    made->source_ = made->computed_;
    made->added_ = std::move(found.added);
    HAULWAY_TRY(made->AddRows(found.weight_of));
    return std::unique_ptr<const FormatReader>(std::move(made));
  }

  const CheckpointIndex& index() const override { return index_; }
  const std::shared_ptr<const ByteSource>& source() const override {
    return source_;
  }
  Status CheckFrame(uint32_t storage, std::span<const std::byte> before,
                    std::span<const std::byte> after) const override {
    if (IsComputed(storage)) return Status();
    return stored_->CheckFrame(row_of_[storage], before, after);
  }
  Status Decode(uint32_t storage, std::span<const std::byte> frame,
                uint64_t offset, std::span<const std::byte> stored,
                std::span<std::byte> out) const override {
    return stored_->Decode(row_of_[storage], frame, offset, stored, out);
  }
  Result<uint64_t> UnitBytes(uint32_t storage,
                             std::span<const std::byte> frame) const override {
    return stored_->UnitBytes(row_of_[storage], frame);
  }
  bool has_digests() const override {
    return stored_->has_digests() || has_checks_;
  }
  Result<std::vector<PayloadDigest>> Digests(
      uint32_t storage, std::span<const std::byte> before,
      std::span<const std::byte> after) const override {
    if (IsComputed(storage)) {
      HAULWAY_TRY(CheckInputs(weight_of_[storage]));
      return std::vector<PayloadDigest>();
    }
    return stored_->Digests(row_of_[storage], before, after);
  }

 private:
  explicit ComputedReader(std::shared_ptr<const FormatReader> stored)
      : stored_(std::move(stored)),
        below_(dynamic_cast<const ComputedReader*>(stored_.get())) {}

  bool IsComputed(uint32_t storage) const {
    return row_of_[storage] == kNoStorage;
  }

  // Compares the CRC-32 of every storage with a tensor of the weight that
  // states one, once. Fails with kMismatch.
  Status CheckInputs(uint32_t weight) const {
    const Weight& of = computed_->weights()[weight];
    for (const uint32_t tensor : of.tensors) HAULWAY_TRY(CheckInput(tensor));
    for (const uint32_t tensor : of.inputs) HAULWAY_TRY(CheckInput(tensor));
    return Status();
  }

  Status CheckInput(uint32_t tensor) const {
    if (tensor == kNoTensor) return Status();
    const CheckpointIndex& index = stored_->index();
    const uint32_t row = index.tensors[tensor].storage;
    if (row == kNoStorage) return Status();
    if (below_ != nullptr && below_->IsComputed(row)) {
      return below_->CheckInputs(below_->weight_of_[row]);
    }
    if (!index.storages[row].crc32.has_value() ||
        !IsAsInMemory(index.storages[row]) ||
        checked_[row].load(std::memory_order_acquire)) {
      return Status();
    }
    HAULWAY_TRY(CheckStorage(index.storages[row]));
    checked_[row].store(true, std::memory_order_release);
    return Status();
  }

  Status CheckStorage(const StorageInfo& storage) const {
    constexpr uint64_t kAtOnce = kMiB;
    uint32_t crc32 = 0;
    std::vector<std::byte> bytes;
    for (uint64_t at = 0; at < storage.nbytes; at += bytes.size()) {
      bytes.resize(std::min(kAtOnce, storage.nbytes - at));
      HAULWAY_TRY(stored_->source()->ReadAt(storage.offset + at, bytes));
      crc32 = Crc32(crc32, bytes);
    }
    if (crc32 == *storage.crc32) return Status();
    return Status(Code::kMismatch,
                  fmt::format("CRC-32 of storage {} differs: expected {:08x}, "
                              "found {:08x}",
                              Quote(storage.key), *storage.crc32, crc32))
        .At(storage.offset);
  }

  Status AddRows(const std::vector<uint32_t>& weight_of) {
    const CheckpointIndex& old = stored_->index();
    checked_ = std::vector<std::atomic<bool>>(old.storages.size());
    has_checks_ = std::ranges::any_of(old.storages, [](const auto& storage) {
      return storage.crc32.has_value();
    });
    index_.format = old.format;
    index_.facts = old.facts;
    index_.metadata = old.metadata;
    index_.parts = old.parts;
    index_.shardings = old.shardings;
    index_.meshes = old.meshes;
    index_.offsets_computed = old.offsets_computed;
    index_.flat = true;
    std::vector<uint32_t> tensors(old.tensors.size(), kNoTensor);
    std::vector<uint32_t> storages(old.storages.size(), kNoStorage);
    const auto keep = [&](uint32_t old_tensor, std::string_view name) {
      uint32_t& tensor = tensors[old_tensor];
      if (tensor == kNoTensor) {
        tensor = static_cast<uint32_t>(index_.tensors.size());
        index_.tensors.push_back(old.tensors[old_tensor]);
        uint32_t& storage = index_.tensors.back().storage;
        if (storage != kNoStorage) storage = Keep(storage, &storages[storage]);
      }
      index_.entries.push_back({name, tensor});
    };
    for (size_t i = 0; i < old.entries.size(); ++i) {
      const Entry& entry = old.entries[i];
      if (weight_of[i] == kIsDropped) continue;
      if (weight_of[i] != kIsKept) {
        HAULWAY_TRY(AddWeight(weight_of[i], entry.name));
        continue;
      }
      keep(entry.tensor, entry.name);
    }
    for (const AddedEntry& one : added_) {
      if (one.weight == kIsKept) {
        keep(old.entries[one.entry].tensor, one.name);
      } else {
        HAULWAY_TRY(AddWeight(one.weight, one.name));
      }
    }
    return Status();
  }

  // Returns the row of a storage that stays.
  uint32_t Keep(uint32_t old, uint32_t* row) {
    if (*row != kNoStorage) return *row;
    *row = static_cast<uint32_t>(index_.storages.size());
    index_.storages.push_back(stored_->index().storages[old]);
    row_of_.push_back(old);
    return *row;
  }

  // `stored`: the name of the root.
  Status AddWeight(uint32_t number, std::string_view stored) {
    const Weight& weight = computed_->weights()[number];
    const bool is_merged = weight.arrangement == Arrangement::kMerged;
    row_of_weight_.resize(computed_->weights().size(), kNoTensor);
    uint32_t& tensor = row_of_weight_[number];
    if (tensor == kNoTensor) {
      HAULWAY_TRY(AppendTensor({.name = weight.name,
                                .dtype = weight.terms.to,
                                .shape = weight.shape,
                                .offset = computed_->StartOf(number),
                                .nbytes = weight.nbytes},
                               &index_, &arena_));
      row_of_.push_back(kNoStorage);
      weight_of_.resize(row_of_.size());
      weight_of_.back() = number;
      tensor = static_cast<uint32_t>(index_.tensors.size() - 1);
    }
    index_.entries.push_back({is_merged ? stored : weight.name, tensor});
    return Status();
  }

  const std::shared_ptr<const FormatReader> stored_;
  // The same object if its weights are computed, too.
  const ComputedReader* const below_;
  std::shared_ptr<const ComputedSource> computed_;
  std::shared_ptr<const ByteSource> source_;  // The same object.
  std::vector<AddedEntry> added_;
  TreeArena arena_;
  CheckpointIndex index_;
  std::vector<uint32_t> row_of_;         // By storage: that of the stored one,
  std::vector<uint32_t> weight_of_;      // or the weight, if it is computed.
  std::vector<uint32_t> row_of_weight_;  // By weight: its tensor.
  bool has_checks_ = false;              // Stored storages have a CRC-32.
  mutable std::vector<std::atomic<bool>> checked_;  // By stored storage.
};

}  // namespace

Result<std::unique_ptr<const FormatReader>> MakeComputedReader(
    std::shared_ptr<const FormatReader> stored, FoundWeights found) {
  return ComputedReader::Make(std::move(stored), std::move(found));
}

}  // namespace haulway::arithmetic
