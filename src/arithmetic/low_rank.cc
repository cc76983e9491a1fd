// Design: sums of a few rows and of a few vectors of columns stay in registers
// while k runs; a panel of the right factor stays in the L1 cache for all rows.
// One template is compiled for each width of vectors; lanes never meet, so
// every width gives the same bits.
//
// Alternatives not taken, on a core of an EPYC with AVX2, for a rank of 64 and
// 4096 columns in blocks of 32 rows: Eigen 3.4 reaches 62 GFlop/s compiled for
// AVX2 and 25 as it must be compiled for every x86-64 processor, since it has
// no choice at run time; OpenBLAS 0.3.21 reaches 63, brings threads of its own,
// and sums in an order that depends on the processor. This code reaches 77, and
// 85 with fused multiplications, which would give other bits.

#include "arithmetic/low_rank.h"

namespace haulway::arithmetic {

namespace {

using Function = void (*)(const float* left, uint64_t rows, uint64_t rank,
                          const float* panels, uint64_t count, float* out,
                          uint64_t stride);

// Floats in a vector of so many bytes, at any address of a float.
template <int kBytes>
struct Floats {
  typedef float Type
      __attribute__((vector_size(kBytes), aligned(alignof(float)), may_alias));
};

// Computes kRows rows of one panel.
template <int kBytes, int kRows>
[[gnu::always_inline]] inline void MultiplyRows(const float* left,
                                                uint64_t rank,
                                                const float* panel, float* out,
                                                uint64_t stride) {
  using Vector = typename Floats<kBytes>::Type;
  constexpr uint64_t kLanes = kBytes / sizeof(float);
  for (uint64_t column = 0; column < kPanelColumns; column += 2 * kLanes) {
    Vector sums[kRows][2] = {};
    for (uint64_t k = 0; k < rank; ++k) {
      const float* const right = panel + k * kPanelColumns + column;
      const Vector first = *reinterpret_cast<const Vector*>(right);
      const Vector second = *reinterpret_cast<const Vector*>(right + kLanes);
      for (int i = 0; i < kRows; ++i) {
        const float factor = left[static_cast<uint64_t>(i) * rank + k];
        sums[i][0] += factor * first;
        sums[i][1] += factor * second;
      }
    }
    for (int i = 0; i < kRows; ++i) {
      float* const row = out + static_cast<uint64_t>(i) * stride + column;
      *reinterpret_cast<Vector*>(row) = sums[i][0];
      *reinterpret_cast<Vector*>(row + kLanes) = sums[i][1];
    }
  }
}

template <int kBytes>
[[gnu::always_inline]] inline void MultiplyPanels(const float* left,
                                                  uint64_t rows, uint64_t rank,
                                                  const float* panels,
                                                  uint64_t count, float* out,
                                                  uint64_t stride) {
  constexpr int kRows = 6;
  for (uint64_t panel = 0; panel < count; ++panel) {
    const float* const right = panels + panel * rank * kPanelColumns;
    float* const to = out + panel * kPanelColumns;
    uint64_t i = 0;
    for (; i + kRows <= rows; i += kRows) {
      MultiplyRows<kBytes, kRows>(left + i * rank, rank, right, to + i * stride,
                                  stride);
    }
    for (; i < rows; ++i) {
      MultiplyRows<kBytes, 1>(left + i * rank, rank, right, to + i * stride,
                              stride);
    }
  }
}

void MultiplyPlain(const float* left, uint64_t rows, uint64_t rank,
                   const float* panels, uint64_t count, float* out,
                   uint64_t stride) {
  MultiplyPanels<16>(left, rows, rank, panels, count, out, stride);
}

#if defined(__x86_64__)
// These processors could fuse products and sums; the compiler must not.
__attribute__((target("avx2"))) void MultiplyInAvx2(
    const float* left, uint64_t rows, uint64_t rank, const float* panels,
    uint64_t count, float* out, uint64_t stride) {
  MultiplyPanels<32>(left, rows, rank, panels, count, out, stride);
}

__attribute__((target("avx512f"))) void MultiplyInAvx512(
    const float* left, uint64_t rows, uint64_t rank, const float* panels,
    uint64_t count, float* out, uint64_t stride) {
  MultiplyPanels<64>(left, rows, rank, panels, count, out, stride);
}
#endif

Function Fastest() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") != 0) return MultiplyInAvx512;
  if (__builtin_cpu_supports("avx2") != 0) return MultiplyInAvx2;
#endif
  return MultiplyPlain;
}

}  // namespace

Panels::Panels(uint64_t rank, uint64_t columns)
    : rank(rank),
      numbers((columns + kPanelColumns - 1) / kPanelColumns * kPanelColumns *
              rank) {}

void Multiply(const float* left, uint64_t rows, const Panels& right,
              uint64_t first, uint64_t count, float* out, uint64_t stride) {
  static const Function kFunction = Fastest();
  kFunction(left, rows, right.rank,
            right.numbers.data() + first * right.rank * kPanelColumns, count,
            out, stride);
}

}  // namespace haulway::arithmetic
