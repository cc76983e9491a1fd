#include "load/tensor_slice.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <climits>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

namespace haulway {
namespace {

// A tensor with its own shape and strides.
struct Strided {
  std::vector<int64_t> shape;
  std::vector<int64_t> strides;
  uint64_t first = 0;
  DType dtype = DType::kI16;

  TensorInfo Info() const {
    TensorInfo info;
    info.dtype = dtype;
    info.shape = shape;
    info.strides = strides;
    info.storage_offset = first;
    return info;
  }
};

// Returns, by definition, the storage element of each output element.
std::vector<uint64_t> Expected(const Strided& tensor,
                               const std::vector<DimSlice>& slices) {
  std::vector<uint64_t> elements = {tensor.first};
  for (size_t d = 0; d < tensor.shape.size(); ++d) {
    std::vector<uint64_t> next;
    const DimSlice& slice = slices[d];
    for (const uint64_t element : elements) {
      for (int64_t i = slice.start;
           slice.step > 0 ? i < slice.stop : i > slice.stop; i += slice.step) {
        next.push_back(element + static_cast<uint64_t>(i * tensor.strides[d]));
      }
    }
    elements = std::move(next);
  }
  return elements;
}

std::vector<DimSlice> AllSlices(int64_t size) {
  std::vector<DimSlice> slices;
  for (int64_t step = -3; step <= 3; ++step) {
    if (step == 0) continue;
    const int64_t low = step > 0 ? 0 : -1;
    const int64_t high = step > 0 ? size : size - 1;
    for (int64_t start = low; start <= high; ++start) {
      for (int64_t stop = low; stop <= high; ++stop) {
        slices.push_back({start, stop, step});
      }
    }
  }
  return slices;
}

constexpr uint16_t kUnread = 0xEEEE;

// Reads the runs into a window of junk, copies the rows out in windows of
// `window` elements, and compares the result with Expected().
void ExpectSlice(const Strided& tensor, const std::vector<DimSlice>& slices,
                 uint64_t hole, uint64_t window) {
  const auto grid = MakeGrid(tensor.Info(), slices);
  ASSERT_TRUE(grid.ok()) << grid.status().message();
  const std::vector<uint64_t> expected = Expected(tensor, slices);
  ASSERT_EQ(grid->count, expected.size());
  if (grid->count == 0) return;
  const auto [lowest, highest] = std::ranges::minmax(expected);
  ASSERT_EQ(grid->first, lowest);
  ASSERT_EQ(grid->Extent(), highest - lowest + 1);

  std::vector<uint16_t> storage(highest + 1, kUnread);
  std::vector<ElementRun> runs;
  ForEachRun(*grid, hole * 2, [&](const ElementRun& run) {
    ASSERT_LT(run.begin, run.end);
    if (!runs.empty()) {
      ASSERT_GT(run.begin, runs.back().end + hole);
    }
    runs.push_back(run);
    for (uint64_t e = run.begin; e < run.end; ++e) {
      storage[e] = static_cast<uint16_t>(e);
      if (run.out.has_value()) {
        ASSERT_EQ(expected[*run.out + (e - run.begin)], e);
      }
    }
  });
  ASSERT_LE(runs.size(), ShapeOfRuns(*grid, hole * 2).count);
  ASSERT_EQ(runs.front().begin, lowest);
  ASSERT_EQ(runs.back().end, highest + 1);

  std::vector<uint16_t> out(expected.size(), kUnread);
  uint64_t taken = 0;
  for (uint64_t begin = 0; begin <= highest; begin += window) {
    ForEachRow(*grid, begin, begin + window, [&](const ElementRow& row) {
      taken += row.count;
      ASSERT_GE(row.begin, begin);
      ASSERT_LT(row.begin + (row.count - 1) * row.stride, begin + window);
      CopyRow(reinterpret_cast<const std::byte*>(storage.data() + row.begin),
              static_cast<int64_t>(row.stride),
              reinterpret_cast<std::byte*>(out.data() + row.out),
              row.out_stride, 2, row.count);
    });
  }
  ASSERT_EQ(taken, expected.size());
  for (size_t i = 0; i < out.size(); ++i) {
    ASSERT_EQ(out[i], expected[i]) << "element " << i;
  }
}

TEST(TensorSlice, EverySliceOfSmallVectorsIsAsDefined) {
  for (const int64_t stride : {0, 1, 2, 5}) {
    for (int64_t size = 0; size <= 5; ++size) {
      const Strided tensor{{size}, {stride}, 3};
      for (const DimSlice& slice : AllSlices(size)) {
        for (const uint64_t hole : {0, 1, 100}) {
          for (const uint64_t window : {1, 3, 100}) {
            ExpectSlice(tensor, {slice}, hole, window);
          }
        }
      }
    }
  }
}

TEST(TensorSlice, EverySliceOfSmallMatricesIsAsDefined) {
  const std::vector<std::vector<int64_t>> strides = {
      {3, 1}, {1, 4}, {0, 1}, {1, 0}, {1, 1}, {2, 3}, {7, 2}, {3, 3}};
  for (const auto& stride : strides) {
    const Strided tensor{{4, 3}, stride, 1};
    for (const DimSlice& a : AllSlices(4)) {
      for (const DimSlice& b : AllSlices(3)) {
        ExpectSlice(tensor, {a, b}, 0, 5);
        ExpectSlice(tensor, {a, b}, 1, 2);
      }
    }
  }
}

TEST(TensorSlice, ThreeDimensionsInEveryOrderAreAsDefined) {
  std::vector<int64_t> strides = {1, 4, 12};
  const std::vector<DimSlice> slices[] = {
      {{0, 3, 1}, {0, 3, 1}, {0, 3, 1}},   {{2, -1, -1}, {0, 3, 2}, {1, 3, 1}},
      {{1, 2, 1}, {0, 3, 1}, {2, -1, -2}}, {{0, 3, 1}, {1, 2, 5}, {0, 3, 1}},
      {{0, 3, 1}, {0, 3, 1}, {1, 1, 1}},   {{2, 0, -1}, {2, -1, -1}, {0, 3, 1}},
  };
  do {
    for (const auto& slice : slices) {
      for (const uint64_t hole : {0, 1, 2, 9}) {
        for (const uint64_t window : {1, 4, 7, 50}) {
          ExpectSlice({{3, 3, 3}, strides, 2}, slice, hole, window);
        }
      }
    }
  } while (std::ranges::next_permutation(strides).found);
}

TEST(TensorSlice, AWholeDenseTensorIsOneRunInPlace) {
  const Strided tensor{{7, 1, 5, 3}, {15, 99, 3, 1}, 4};
  const auto grid = MakeGrid(tensor.Info(), {});
  ASSERT_TRUE(grid.ok());
  std::vector<ElementRun> runs;
  ForEachRun(*grid, 0, [&](const ElementRun& run) { runs.push_back(run); });
  ASSERT_EQ(runs.size(), 1u);
  EXPECT_EQ(runs[0].begin, 4u);
  EXPECT_EQ(runs[0].end, 4u + 105u);
  EXPECT_EQ(runs[0].out, 0u);
}

TEST(TensorSlice, RowsOfADenseTensorAreReadAlone) {
  const Strided tensor{{1 << 20, 1 << 20}, {1 << 20, 1}, 0};
  const DimSlice rows{1 << 18, 1 << 19, 1};
  const auto grid =
      MakeGrid(tensor.Info(), std::vector<DimSlice>{rows, {0, 1 << 20, 1}});
  ASSERT_TRUE(grid.ok());
  const RunShape shape = ShapeOfRuns(*grid, 0);
  EXPECT_EQ(shape.count, 1u);
  EXPECT_EQ(shape.length, uint64_t{1} << 38);
  EXPECT_TRUE(shape.in_place);
}

TEST(TensorSlice, AScalarIsOneElement) {
  const Strided tensor{{}, {}, 9};
  ExpectSlice(tensor, {}, 0, 4);
}

struct HostileSlice {
  DimSlice slice;
  const char* message;
};

TEST(TensorSlice, RefusesWhatLeavesTheShape) {
  const Strided tensor{{10}, {1}};
  const HostileSlice cases[] = {
      {{0, 11, 1},
       "slice 0:11:1 of dimension 0 leaves it: expected indices "
       "of 10 elements"},
      {{-1, 10, 1}, "leaves it"},
      {{10, -1, -1}, "leaves it"},
      {{9, -2, -1}, "leaves it"},
      {{0, INT64_MAX, 1}, "leaves it"},
      {{INT64_MIN, 10, 1}, "leaves it"},
      {{0, 10, 0}, "slice of dimension 0 has step 0"},
  };
  for (const HostileSlice& one : cases) {
    const auto grid = MakeGrid(tensor.Info(), std::vector{one.slice});
    ASSERT_FALSE(grid.ok());
    EXPECT_EQ(grid.status().code(), Code::kInvalidArgument);
    EXPECT_NE(grid.status().message().find(one.message), std::string::npos)
        << grid.status().message();
  }
  EXPECT_FALSE(
      MakeGrid(tensor.Info(), std::vector<DimSlice>{{0, 1, 1}, {0, 1, 1}})
          .ok());
}

TEST(TensorSlice, TakesStepsLargerThanAnyTensor) {
  const Strided tensor{{10, 2}, {2, 1}};
  for (const int64_t step : {INT64_MAX, INT64_MIN, INT64_MIN + 1}) {
    const DimSlice slice =
        step > 0 ? DimSlice{3, 10, step} : DimSlice{3, -1, step};
    EXPECT_EQ(Count(slice), 1u);
    const auto grid =
        MakeGrid(tensor.Info(), std::vector<DimSlice>{slice, {0, 2, 1}});
    ASSERT_TRUE(grid.ok());
    EXPECT_EQ(grid->count, 2u);
    EXPECT_EQ(grid->first, 6u);
  }
}

TEST(TensorSlice, RefusesSizesThatOverflow) {
  const int64_t huge = int64_t{1} << 62;
  for (const Strided& tensor :
       {Strided{{huge, huge}, {0, 0}}, Strided{{huge}, {8}},
        Strided{{2}, {INT64_MAX}, UINT64_MAX - 3},
        Strided{{huge, 2, 2}, {1, 1, 1}}}) {
    const auto grid = MakeGrid(tensor.Info(), {});
    ASSERT_FALSE(grid.ok());
    EXPECT_EQ(grid.status().message(), "slice: its size overflows");
  }
}

TEST(TensorSlice, CopiesRowsOfEveryItemSize) {
  for (const uint64_t item : {1, 2, 3, 4, 8, 16}) {
    std::vector<std::byte> from(20 * item);
    for (size_t i = 0; i < from.size(); ++i) {
      from[i] = static_cast<std::byte>(i);
    }
    std::vector<std::byte> out(10 * item);
    // Every other element, in reverse order.
    CopyRow(from.data(), 2, out.data() + 9 * item, -1, item, 10);
    for (size_t e = 0; e < 10; ++e) {
      EXPECT_EQ(std::memcmp(out.data() + (9 - e) * item,
                            from.data() + 2 * e * item, item),
                0);
    }
  }
}

}  // namespace
}  // namespace haulway
