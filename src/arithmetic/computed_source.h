// The bytes of a checkpoint, followed by those of weights that are computed.

#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "arithmetic/weight_reader.h"
#include "haulway/format.h"
#include "haulway/source.h"
#include "haulway/status.h"

namespace haulway::arithmetic {

// Threads: any number at once.
class ComputedSource : public ByteSource {
 public:
  // Fails with kLimit if the sizes overflow.
  static Result<std::shared_ptr<const ComputedSource>> Make(
      std::shared_ptr<const FormatReader> reader, std::vector<Weight> weights);

  // Where the bytes of a weight begin.
  uint64_t StartOf(uint32_t weight) const { return starts_[weight]; }
  const std::vector<Weight>& weights() const { return values_.weights(); }

  std::string_view name() const override { return stored().name(); }
  uint64_t size() const override { return size_; }
  Status ReadAt(uint64_t offset, std::span<std::byte> out) const override;
  Status ReadMany(std::span<const ReadRequest> requests) const override;
  std::optional<Buffer> View(uint64_t offset, uint64_t length) const override;
  std::optional<FileBytes> InFile(uint64_t offset,
                                  uint64_t length) const override;
  SourceTraits Look(std::span<const ByteRange> ranges) const override;
  std::optional<RemoteStats> remote_stats() const override {
    return stored().remote_stats();
  }
  void DropCache(uint64_t offset, uint64_t length) const override;
  Result<std::shared_ptr<const ByteSource>> OpenNeighbour(
      std::string_view name) const override {
    return stored().OpenNeighbour(name);
  }

 private:
  ComputedSource(std::shared_ptr<const FormatReader> reader,
                 std::vector<Weight> weights);

  const ByteSource& stored() const { return *reader_->source(); }
  // Computes what lies behind the stored bytes; between weights are zeros.
  Status Compute(uint64_t offset, std::span<std::byte> out) const;

  const std::shared_ptr<const FormatReader> reader_;
  const WeightReader values_;
  std::vector<uint64_t> starts_;  // By weight, ascending.
  uint64_t size_ = 0;
};

}  // namespace haulway::arithmetic
