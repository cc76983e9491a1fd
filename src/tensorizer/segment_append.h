// Appends tensors to a file in segments.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "haulway/status.h"
#include "haulway/tensorizer.h"
#include "io/editable_file.h"
#include "tensorizer/tensor_plan.h"

namespace haulway::tensorizer {

// A SegmentAppend plans tensors, writes their data, and then encodes their
// index entries and headers. `tensors` and `options` must outlive it.
class SegmentAppend {
 public:
  // Fails as LayOutTensorizer() does.
  Status Plan(std::span<const TensorizerInput> tensors,
              const TensorizerOptions& options);

  bool empty() const { return plans_.empty(); }
  std::span<const TensorPlan> plans() const { return plans_; }
  bool long_dims() const { return long_dims_; }
  uint64_t data_bytes() const;
  uint64_t index_bytes(bool tagged) const;
  uint64_t header_bytes() const;

  // Writes the data from `at` on, each tensor at a multiple of `alignment`, and
  // an end mark. Data offsets are relative to `start`. Returns where the data
  // ends.
  Result<uint64_t> WriteData(EditableFile& file, uint64_t start, uint64_t at,
                             uint64_t alignment, int threads);

  // Appends the index entries and headers. The first header is at
  // `header_offset`. Requires: WriteData() succeeded.
  void AddTo(uint64_t header_offset, bool tagged, std::vector<std::byte>* index,
             std::vector<std::byte>* headers) const;

 private:
  Status WriteTensor(EditableFile& file, size_t i, uint64_t place);

  Secret key_;
  bool long_dims_ = false;
  std::vector<TensorPlan> plans_;
  // Data offset by plan, once the plan's data is written.
  std::vector<uint64_t> data_offsets_;
  std::vector<std::vector<std::byte>> headers_;
};

}  // namespace haulway::tensorizer
