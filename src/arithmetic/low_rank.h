// Products of two factors of low rank, in float32.
//
// Element (i, j) is the sum of left(i, k) * right(k, j) from the first k to the
// last. Each product and each sum is rounded, so an element has the same bits
// whichever elements are computed with it, on every processor.

#pragma once

#include <cstdint>
#include <vector>

namespace haulway::arithmetic {

// The right factor, in panels of columns: element (k, j) is at
// (j / kPanelColumns * rank + k) * kPanelColumns + j % kPanelColumns. Behind
// the last column are zeros.
inline constexpr uint64_t kPanelColumns = 32;

struct Panels {
  uint64_t rank = 0;
  std::vector<float> numbers;

  Panels() = default;
  Panels(uint64_t rank, uint64_t columns);

  float& At(uint64_t k, uint64_t column) {
    return numbers[(column / kPanelColumns * rank + k) * kPanelColumns +
                   column % kPanelColumns];
  }
};

// Computes `rows` rows of the product for `count` panels from `first` on. Row
// i begins at out + i * stride, with the columns of the first panel.
// `left`: right.rank numbers of each row.
void Multiply(const float* left, uint64_t rows, const Panels& right,
              uint64_t first, uint64_t count, float* out, uint64_t stride);

}  // namespace haulway::arithmetic
