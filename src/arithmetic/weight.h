// A weight that is computed: the tensors that make it up, and how its elements
// follow from theirs.

#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "arithmetic/ggml_blocks.h"
#include "arithmetic/packed_columns.h"
#include "arithmetic/scaled_rows.h"
#include "haulway/dtype.h"
#include "haulway/format.h"
#include "haulway/index.h"
#include "haulway/source.h"

namespace haulway::arithmetic {

// What a tensor is to a weight.
enum class Role : uint8_t {
  kRoot,         // The quantized numbers.
  kScale,        // What each group of numbers is multiplied by.
  kZero,         // The number of each group that means 0.
  kGlobalScale,  // One number with which the scales are multiplied or divided.
  kGroupIndex,   // The group of each column.
  kMap,          // The numbers that codes mean,
  kNestedScale,  // and for scales that are codes themselves:
  kNestedMap,    // their own scales and numbers.
  kShape,        // The shape of the weight,
  kState,        // or its shape and more, as JSON.
};
inline constexpr size_t kRoles = static_cast<size_t>(Role::kState) + 1;

inline constexpr uint32_t kNoTensor = 0xFFFFFFFF;

// How stored tensors become rows.
enum class Arrangement : uint8_t {
  kBlocks,      // Blocks of ggml, one after another.
  kRows,        // A row of the result is a row of the root.
  kColumns,     // A row of the result is a column of the root.
  kTransposed,  // The same, of MXFP4 blocks in stacked matrices.
  kMerged,      // A row of the result is a row of the root, changed by steps.
  kMade,        // Bytes of a source of their own: a rule made them.
};

// A tensor of an adapter: a row of its index.
struct AdapterTensor {
  std::shared_ptr<const FormatReader> reader;
  uint32_t tensor = kNoTensor;

  explicit operator bool() const { return reader != nullptr; }
  const TensorInfo& info() const { return reader->index().tensors[tensor]; }
};

// What an adapter does to a weight. After each step, the numbers are rounded to
// the dtype of the weight.
struct MergeStep {
  enum class Kind : uint8_t {
    kReplace,  // `value` takes the place of the weight.
    kVector,   // `value` times `scale` is added to each row.
    // left * right, times `scale`, is added. With a magnitude of each output of
    // the module, the sum is then brought to the length that it states.
    kProduct,
  };
  Kind kind = Kind::kProduct;
  AdapterTensor value = {};

  uint64_t rank = 0;
  // Factors of [rows, rank] and [rank, columns]; if the weight is stored
  // transposed, [rank, rows] and [columns, rank].
  AdapterTensor left = {}, right = {};
  bool is_transposed = false;
  // The product itself is rounded to the dtype of the weight, too.
  bool rounds_product = false;
  AdapterTensor magnitude = {};
  float scale = 1;
};

struct Weight {
  std::string name;
  std::vector<int64_t> shape;
  uint64_t nbytes = 0;  // The result has so many.
  // Rows of the index of the checkpoint, by Role; kNoTensor: none.
  std::array<uint32_t, kRoles> tensors;

  Arrangement arrangement = Arrangement::kRows;
  RowTerms terms;
  uint64_t matrices = 1;
  uint64_t rows = 0;       // Of each matrix of the result.
  uint64_t row_bytes = 0;  // A row of the root has so many.
  // The elements of all rows; the last one may be short.
  uint64_t elements = 0;

  // kBlocks:
  BlocksFunction blocks = nullptr;

  // kRows: scales are a grid for each matrix; row r has row r / block_rows of
  // it.
  uint64_t block_rows = 1;
  uint64_t scale_rows = 1;
  // The scales are multiplied by the global one; else divided.
  bool multiplies_global = false;
  // Zeros are packed down the rows, in words of 32 bits; else a byte each, in
  // the grid of the scales.
  bool has_packed_zeros = false;
  // Scales that are codes: how many share a nested scale, and what is added.
  uint64_t nested_group = 0;
  float nested_offset = 0;

  // kColumns:
  Packing packing = Packing::kGptq;
  uint32_t added_to_zeros = 0;

  // kMerged:
  std::vector<MergeStep> steps;

  // kMade: the result, and the tensors that it is made of.
  std::shared_ptr<const ByteSource> bytes;
  std::vector<uint32_t> inputs;

  Weight() { tensors.fill(kNoTensor); }
  uint32_t tensor(Role role) const {
    return tensors[static_cast<size_t>(role)];
  }
  bool has(Role role) const { return tensor(role) != kNoTensor; }
};

}  // namespace haulway::arithmetic
