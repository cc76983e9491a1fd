// Reads and computes parts of weights.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "arithmetic/kept_values.h"
#include "arithmetic/merge_reader.h"
#include "arithmetic/stored_bytes.h"
#include "arithmetic/weight.h"
#include "arithmetic/weight_output.h"
#include "base/kept_memory.h"
#include "haulway/buffer.h"
#include "haulway/format.h"
#include "haulway/status.h"

namespace haulway::arithmetic {

// A WeightReader computes ranges of weights. It reads the rows of the root and
// of its scales that a range needs; of small scales and of other companions, it
// reads all, and keeps those of the weights that were read last. A root whose
// columns become rows is read in panels of columns, of which the last are kept.
//
// Threads: any number at once.
class WeightReader {
 public:
  // `reader`, of the stored tensors, must outlive this.
  WeightReader(const FormatReader& reader, std::vector<Weight> weights);

  const std::vector<Weight>& weights() const { return weights_; }

  // Computes bytes of a weight from `begin` on. Requires: they lie within it.
  Status Read(uint32_t weight, uint64_t begin, std::span<std::byte> out) const;

 private:
  // The companions of a weight.
  struct Companions {
    std::array<Buffer, kRoles> parts;
    float global = 1;
    std::vector<uint32_t> group_of;
    std::vector<float> map, nested_map;
  };
  // Columns of a stored matrix, beside one another.
  struct Panel {
    Buffer bytes, scale_bytes;
    StoredRows rows;
    StoredRows scales;       // For kTransposed, those of the whole matrix.
    uint64_t first_row = 0;  // The row of the result at its first byte.
  };
  class RowLoop;

  Result<std::shared_ptr<const Companions>> CompanionsOf(uint32_t weight) const;
  Result<Companions> LoadCompanions(const Weight& weight) const;
  Result<Buffer> Load(const TensorInfo& info, uint64_t begin,
                      uint64_t length) const {
    return LoadBytes(reader_, info, begin, length, &memory_);
  }
  // Returns the panel with a row of a matrix, and sets `end` to the first row
  // behind it.
  Result<std::shared_ptr<const Panel>> PanelOf(uint32_t weight, uint64_t matrix,
                                               uint64_t row,
                                               uint64_t* end) const;
  Result<Panel> LoadPanel(const Weight& weight, uint64_t matrix,
                          uint64_t first_unit, uint64_t units) const;

  Status ReadBlocks(const Weight& weight, WeightOutput* out) const;
  Status ReadRows(uint32_t number, WeightOutput* out) const;
  Status ReadColumns(uint32_t number, WeightOutput* out) const;
  Status ReadTransposed(uint32_t number, WeightOutput* out) const;

  const FormatReader& reader_;
  const std::vector<Weight> weights_;
  const KeptMemory memory_{4};
  mutable KeptValues<Companions> companions_{3};
  mutable KeptValues<Panel> panels_{3};
  const MergeReader merges_;
};

}  // namespace haulway::arithmetic
