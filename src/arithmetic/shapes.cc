#include "arithmetic/shapes.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <initializer_list>
#include <limits>
#include <string>

#include "base/checked.h"
#include "base/text.h"

namespace haulway::arithmetic {

std::string ShapeText(std::span<const int64_t> shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

Status Making::Wrong(Role role, std::string_view what) const {
  return Status(Code::kMismatch, what)
      .In(Quote(names[static_cast<size_t>(role)]));
}

uint64_t ElementsOf(std::span<const int64_t> shape) {
  uint64_t count = 1;
  for (const int64_t size : shape) count *= static_cast<uint64_t>(size);
  return count;
}

Matrices MatricesOf(std::span<const int64_t> shape) {
  Matrices made;
  if (shape.empty()) return made;
  made.columns = static_cast<uint64_t>(shape.back());
  if (shape.size() == 1) return made;
  made.rows = static_cast<uint64_t>(shape[shape.size() - 2]);
  made.count = ElementsOf(shape.first(shape.size() - 2));
  return made;
}

Status SetShape(const Making& making, std::vector<int64_t> shape) {
  Weight& weight = *making.weight;
  uint64_t bytes = ItemBytes(weight.terms.to);
  bool fits = true;
  for (const int64_t size : shape) {
    fits = fits && size >= 0 &&
           CheckedMultiply(bytes, static_cast<uint64_t>(size), &bytes);
  }
  if (!fits || bytes > std::numeric_limits<int64_t>::max()) {
    return making.Wrong(Role::kRoot,
                        fmt::format("a weight of shape {} is more than memory "
                                    "can hold",
                                    ShapeText(shape)));
  }
  const Matrices matrices = MatricesOf(shape);
  weight.shape = std::move(shape);
  weight.nbytes = bytes;
  weight.matrices = matrices.count;
  weight.rows = matrices.rows;
  weight.terms.columns = matrices.columns;
  weight.elements = bytes / ItemBytes(weight.terms.to);
  return Status();
}

Status SetGrid(const Making& making, std::optional<BlockSize> block,
               bool is_fixed) {
  Weight& weight = *making.weight;
  RowTerms& terms = weight.terms;
  const std::span<const int64_t> shape = making.info(Role::kScale).shape;
  weight.scale_rows = 1;
  terms.groups = 1;
  terms.group = std::max<uint64_t>(terms.columns, 1);
  if (ElementsOf(shape) == 1 && !is_fixed) {
    weight.rows *= weight.matrices;
    weight.matrices = 1;
    weight.block_rows = std::max<uint64_t>(weight.rows, 1);
    return Status();
  }
  const std::span<const int64_t> of_weight(weight.shape);
  const Matrices grid = MatricesOf(shape);
  const bool is_alike = shape.size() >= 2 && shape.size() == of_weight.size() &&
                        std::ranges::equal(shape.first(shape.size() - 2),
                                           of_weight.first(shape.size() - 2));
  const auto wrong = [&] {
    std::string expected = "one, or a grid that divides it";
    if (block.has_value()) {
      expected = fmt::format("a grid of {} x {} for blocks of {} x {}",
                             CeilDivide(weight.rows, block->first),
                             CeilDivide(terms.columns, block->second),
                             block->first, block->second);
    }
    return making.Wrong(
        Role::kScale,
        fmt::format("the scales have shape {} for a weight of {}: expected {}",
                    ShapeText(shape), ShapeText(of_weight), expected));
  };
  if (!is_alike) return wrong();
  weight.scale_rows = grid.rows;
  terms.groups = grid.columns;
  if (block.has_value() && grid.rows == CeilDivide(weight.rows, block->first) &&
      grid.columns == CeilDivide(terms.columns, block->second)) {
    weight.block_rows = block->first;
    terms.group = block->second;
    return Status();
  }
  if (is_fixed || grid.is_empty() || weight.rows % grid.rows != 0 ||
      terms.columns % grid.columns != 0) {
    return wrong();
  }
  weight.block_rows = std::max<uint64_t>(weight.rows / grid.rows, 1);
  terms.group = std::max<uint64_t>(terms.columns / grid.columns, 1);
  return Status();
}

Status CheckDType(const Making& making, Role role,
                  std::initializer_list<DType> dtypes) {
  const DType dtype = making.info(role).dtype;
  if (std::ranges::find(dtypes, dtype) != dtypes.end()) return Status();
  std::vector<std::string_view> names;
  for (const DType one : dtypes) names.push_back(Name(one));
  return making.Wrong(role, fmt::format("it has dtype {}: expected {}",
                                        Name(dtype), fmt::join(names, " or ")));
}

Status CheckShape(const Making& making, Role role,
                  std::initializer_list<uint64_t> shape) {
  const std::span<const int64_t> found = making.info(role).shape;
  const bool is_same = std::ranges::equal(found, shape, {}, [](int64_t size) {
    return static_cast<uint64_t>(size);
  });
  if (is_same) return Status();
  return making.Wrong(
      role, fmt::format("it has shape {}: expected [{}]", ShapeText(found),
                        fmt::join(shape, ", ")));
}

Status CheckOne(const Making& making, Role role) {
  const std::span<const int64_t> shape = making.info(role).shape;
  if (ElementsOf(shape) == 1) return Status();
  return making.Wrong(role, fmt::format("it has shape {}: expected one number",
                                        ShapeText(shape)));
}

}  // namespace haulway::arithmetic
