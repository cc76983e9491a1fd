// Shapes of weights as matrices, and the grids of their scales.

#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "arithmetic/making.h"
#include "haulway/status.h"

namespace haulway::arithmetic {

constexpr uint64_t CeilDivide(uint64_t a, uint64_t b) {
  return a / b + (a % b == 0 ? 0 : 1);
}

// The last dimension is the columns, the one before it the rows, and the others
// count matrices. A tensor of one dimension is one row.
struct Matrices {
  uint64_t count = 1;
  uint64_t rows = 1;
  uint64_t columns = 1;

  bool is_empty() const { return count == 0 || rows == 0 || columns == 0; }
};
Matrices MatricesOf(std::span<const int64_t> shape);

std::string ShapeText(std::span<const int64_t> shape);

// Returns the product of the sizes. Requires: it does not overflow, which
// holds for tensors with data.
uint64_t ElementsOf(std::span<const int64_t> shape);

// Sets shape and size of the result, and the matrices that it consists of.
// Fails with kMismatch if there are more bytes than 2^63.
Status SetShape(const Making& making, std::vector<int64_t> shape);

using BlockSize = std::pair<uint64_t, uint64_t>;

// Sets how scales of rows are laid out, from the shape of the scales: one for
// all, or a grid. `block`: the sizes that are declared, which hold if the grid
// has as many blocks as that makes; otherwise the grid must divide the
// matrices. `is_fixed`: no other blocks are possible. Requires: SetShape().
Status SetGrid(const Making& making, std::optional<BlockSize> block,
               bool is_fixed = false);

// Fails unless the tensor has one of these dtypes.
Status CheckDType(const Making& making, Role role,
                  std::initializer_list<DType> dtypes);
// Fails unless the tensor has this shape.
Status CheckShape(const Making& making, Role role,
                  std::initializer_list<uint64_t> shape);
// Fails unless the tensor has one element.
Status CheckOne(const Making& making, Role role);

}  // namespace haulway::arithmetic
