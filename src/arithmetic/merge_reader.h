// Computes parts of weights into which adapters are merged.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "arithmetic/kept_values.h"
#include "arithmetic/low_rank.h"
#include "arithmetic/weight.h"
#include "arithmetic/weight_output.h"
#include "haulway/buffer.h"
#include "haulway/format.h"
#include "haulway/status.h"

namespace haulway::arithmetic {

// A MergeReader computes ranges of weights of the arrangement kMerged. It keeps
// the right factors of the last few weights; left factors, and the weights
// themselves, are read row by row.
//
// Threads: any number at once.
class MergeReader {
 public:
  // Both must outlive this. `reader`: of the tensors that the weights begin
  // with.
  MergeReader(const FormatReader& reader, const std::vector<Weight>& weights)
      : reader_(reader), weights_(weights) {}

  Status Read(uint32_t weight, WeightOutput* out) const;

 private:
  // What a step needs in memory.
  struct Factors {
    Buffer left;  // As stored.
    Panels right;
    std::vector<float> value;      // For kVector.
    std::vector<float> magnitude;  // By output.
  };
  using AllFactors = std::vector<Factors>;  // By step.
  // Rows of the root, or of what replaces it: elements from `first` on.
  struct Rows {
    const std::byte* bytes = nullptr;
    DType dtype = DType::kF32;
    uint64_t first = 0;
    std::optional<Buffer> view;  // Else they are in Memory::stored.
  };
  // Columns of some rows.
  struct Tile {
    uint64_t row = 0;
    uint64_t rows = 0;
    uint64_t column = 0;  // A multiple of kPanelColumns.
    uint64_t columns = 0;
    uint64_t stride = 0;  // Of rows in memory: full panels.
  };
  struct Memory;

  Result<AllFactors> LoadFactors(const Weight& weight) const;
  Result<Rows> LoadRows(const Weight& weight, uint64_t first, uint64_t count,
                        Memory* memory) const;
  // Widens the numbers that the steps begin with.
  void Begin(const Weight& weight, const Rows& rows, const Tile& tile,
             std::vector<float>* numbers) const;
  // Computes what a step adds.
  void Product(const Weight& weight, const MergeStep& step,
               const Factors& factors, const Tile& tile, Memory* memory) const;
  // Returns the length of each column of what a step with magnitudes begins
  // with, plus its product.
  Result<std::shared_ptr<const std::vector<float>>> Lengths(
      uint32_t number, const AllFactors& factors, size_t step) const;
  Result<std::vector<float>> ComputeLengths(const Weight& weight,
                                            const AllFactors& factors,
                                            size_t step) const;
  // Computes a tile; the result is in memory->numbers.
  Status Compute(uint32_t number, const AllFactors& factors, const Rows& rows,
                 const Tile& tile, Memory* memory) const;

  const FormatReader& reader_;
  const std::vector<Weight>& weights_;
  mutable KeptValues<AllFactors> factors_{8};
  mutable KeptValues<std::vector<float>> lengths_{8};
};

}  // namespace haulway::arithmetic
