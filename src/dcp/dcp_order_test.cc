#include "dcp/dcp_order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

namespace haulway::dcp {
namespace {

using Numbers = std::vector<int64_t>;

// Returns strides for dimensions whose order in the data is `order`.
Numbers StridesOf(const Numbers& sizes, const std::vector<size_t>& order) {
  Numbers strides(sizes.size());
  int64_t stride = 1;
  for (size_t i = order.size(); i-- > 0;) {
    strides[order[i]] = stride;
    stride *= sizes[order[i]];
  }
  return strides;
}

TEST(DcpOrder, IsAnOrderOfDimensions) {
  EXPECT_TRUE(IsReordered(Numbers{4, 6}, Numbers{6, 1}));
  EXPECT_TRUE(IsReordered(Numbers{4, 6}, Numbers{1, 4}));
  EXPECT_TRUE(IsReordered(Numbers{2, 3, 4, 4}, Numbers{48, 1, 12, 3}));
  EXPECT_TRUE(IsReordered(Numbers{1, 5}, Numbers{77, 1}));
  EXPECT_TRUE(IsReordered(Numbers{}, Numbers{}));
  EXPECT_FALSE(IsReordered(Numbers{4, 6}, Numbers{7, 1}));
  EXPECT_FALSE(IsReordered(Numbers{4, 3}, Numbers{0, 1}));
  EXPECT_FALSE(IsReordered(Numbers{4, 6}, Numbers{1, 1}));
  EXPECT_FALSE(IsReordered(Numbers{4}, Numbers{2}));
  EXPECT_FALSE(IsReordered(Numbers{INT64_MAX, 4, 4}, Numbers{1, INT64_MAX, 1}));
}

TEST(DcpOrder, GivesEveryRangeOfEveryOrder) {
  std::mt19937 random(7);
  const std::vector<Numbers> shapes = {{},     {5},          {4, 6},
                                       {1, 7}, {3, 1, 4},    {2, 3, 4},
                                       {6, 1}, {2, 3, 2, 3}, {1, 1, 1}};
  for (const Numbers& sizes : shapes) {
    const auto count = static_cast<uint64_t>(std::accumulate(
        sizes.begin(), sizes.end(), int64_t{1}, std::multiplies<>()));
    std::vector<size_t> order(sizes.size());
    std::iota(order.begin(), order.end(), size_t{0});
    do {
      const Numbers strides = StridesOf(sizes, order);
      ASSERT_TRUE(IsReordered(sizes, strides));
      // Compute the place of each row-major element by definition.
      std::vector<uint16_t> data(count);
      std::vector<uint16_t> wanted(count);
      for (uint64_t i = 0; i < count; ++i) {
        uint64_t rest = i;
        int64_t place = 0;
        for (size_t d = sizes.size(); d-- > 0;) {
          place += static_cast<int64_t>(rest) % sizes[d] * strides[d];
          rest /= static_cast<uint64_t>(sizes[d]);
        }
        data[static_cast<size_t>(place)] = wanted[i] =
            static_cast<uint16_t>(random());
      }
      for (uint64_t begin = 0; begin < count; ++begin) {
        for (uint64_t end = begin + 1; end <= count; ++end) {
          std::vector<uint16_t> found;
          for (const ElementBox& box : BoxesOf(sizes, strides, begin, end)) {
            std::vector<uint16_t> stored;
            uint64_t last = 0;
            ForEachRun(box, [&](uint64_t first, uint64_t length) {
              ASSERT_GE(first, last);
              last = first + length;
              ASSERT_LE(last, count);
              stored.insert(stored.end(),
                            data.begin() + static_cast<ptrdiff_t>(first),
                            data.begin() + static_cast<ptrdiff_t>(last));
            });
            ASSERT_EQ(stored.size(), CountOf(box));
            std::vector<uint16_t> placed(stored.size());
            PlaceBox(box, 2, std::as_bytes(std::span(stored)),
                     std::as_writable_bytes(std::span(placed)));
            found.insert(found.end(), placed.begin(), placed.end());
          }
          ASSERT_TRUE(std::equal(found.begin(), found.end(),
                                 wanted.begin() + static_cast<ptrdiff_t>(begin),
                                 wanted.begin() + static_cast<ptrdiff_t>(end)))
              << begin << " to " << end;
        }
      }
    } while (std::ranges::next_permutation(order).found);
  }
}

TEST(DcpOrder, ReadsRowsOfATransposedMatrixByColumns) {
  // 1000 x 8, column-major: rows 100 to 200 are one run per column.
  const auto boxes = BoxesOf(Numbers{1000, 8}, Numbers{1, 1000}, 800, 1600);
  ASSERT_EQ(boxes.size(), 1u);
  std::vector<uint64_t> firsts;
  ForEachRun(boxes[0], [&](uint64_t first, uint64_t count) {
    firsts.push_back(first);
    EXPECT_EQ(count, 100u);
  });
  EXPECT_EQ(firsts.size(), 8u);
  EXPECT_EQ(firsts[1], 1100u);
}

}  // namespace
}  // namespace haulway::dcp
