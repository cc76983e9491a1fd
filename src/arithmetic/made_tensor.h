// Tensors whose bytes are those of others, rearranged or changed one by one.

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "arithmetic/kept_values.h"
#include "haulway/buffer.h"
#include "haulway/dtype.h"
#include "haulway/format.h"
#include "haulway/source.h"
#include "haulway/status.h"

namespace haulway::arithmetic {

// A MadeTensor is made when it is read, each range by itself.
struct MadeTensor {
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  // Its elements, in rows.
  std::shared_ptr<const ByteSource> bytes;
  // The stored tensors that it is made of: rows of the index.
  std::vector<uint32_t> inputs;

  int64_t size(size_t dim) const { return shape[dim]; }
};

// The panels of transposed tensors that were read last.
struct KeptPanels {
  KeptValues<Buffer> panels{3};
  std::atomic<uint64_t> next = 0;  // The number of the next one.
};

// Returns a tensor of the checkpoint, which must outlive it. Fails with
// kUnsupported for one that is not stored densely, in rows, or whose items are
// not numbers.
Result<MadeTensor> StoredTensor(const FormatReader& reader, uint32_t tensor);

// Each fails with kLimit if sizes overflow. Dimensions are within the shape.

// Joins tensors along a dimension. Requires: they differ in no other.
Result<MadeTensor> Join(std::span<const MadeTensor> parts, size_t dim);
// Requires: begin + size <= from.size(dim).
Result<MadeTensor> Cut(const MadeTensor& from, size_t dim, int64_t begin,
                       int64_t size);
// Dimension i of the result is dimension dims[i] of `from`.
Result<MadeTensor> Transpose(const MadeTensor& from,
                             std::span<const size_t> dims,
                             std::shared_ptr<KeptPanels> kept);

// What becomes of a number, in F32.
enum class NumberChange : uint8_t { kNone, kAdd, kMultiply };
// Changes each number, and casts it. Requires: CanCast() to F32, and to `to`.
Result<MadeTensor> Change(const MadeTensor& from, NumberChange change,
                          float value, DType to);

}  // namespace haulway::arithmetic
