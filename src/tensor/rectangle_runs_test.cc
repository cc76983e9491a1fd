#include "tensor/rectangle_runs.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

namespace haulway {
namespace {

using Numbers = std::vector<int64_t>;

struct Rectangle {
  Numbers shape;
  Numbers begin;
  Numbers sizes;
  Numbers strides;  // Empty: row-major.
};

const Rectangle kRectangles[] = {
    {{}, {}, {}, {}},
    {{6}, {2}, {3}, {}},
    {{6}, {2}, {3}, {2}},
    {{4, 5}, {1, 0}, {2, 5}, {}},
    {{4, 5}, {1, 2}, {3, 2}, {}},
    {{4, 5}, {1, 2}, {3, 2}, {1, 3}},
    {{4, 1, 5}, {1, 0, 2}, {3, 1, 3}, {3, 99, 1}},
    {{3, 4, 2}, {0, 1, 0}, {3, 2, 2}, {}},
    {{3, 4, 2}, {1, 1, 1}, {1, 3, 1}, {7, 2, 5}},
};

// Returns where each byte of [begin, end) of the tensor is stored; UINT64_MAX
// for a byte that is not of the rectangle.
std::vector<uint64_t> ByHand(const Rectangle& of, uint64_t item, uint64_t begin,
                             uint64_t end) {
  std::vector<uint64_t> places;
  for (uint64_t at = begin; at < end; ++at) {
    uint64_t rest = at / item;
    uint64_t place = 0;
    uint64_t dense = 1;
    bool is_inside = true;
    for (size_t d = of.shape.size(); d-- > 0;) {
      const auto index =
          static_cast<int64_t>(rest % static_cast<uint64_t>(of.shape[d]));
      rest /= static_cast<uint64_t>(of.shape[d]);
      const int64_t own = index - of.begin[d];
      is_inside = is_inside && own >= 0 && own < of.sizes[d];
      const uint64_t stride =
          of.strides.empty() ? dense : static_cast<uint64_t>(of.strides[d]);
      place += static_cast<uint64_t>(own) * stride;
      dense *= static_cast<uint64_t>(of.sizes[d]);
    }
    places.push_back(is_inside ? place * item + at % item : UINT64_MAX);
  }
  return places;
}

TEST(RectangleRuns, AreTheBytesOfTheRectangle) {
  for (const Rectangle& of : kRectangles) {
    for (const uint64_t item : {1, 4}) {
      uint64_t bytes = item;
      for (const int64_t size : of.shape) bytes *= static_cast<uint64_t>(size);
      const RectangleRuns runs(item, of.shape, of.begin, of.sizes, of.strides);
      for (uint64_t begin = 0; begin <= bytes; ++begin) {
        for (uint64_t end = begin; end <= bytes; ++end) {
          std::vector<uint64_t> found(end - begin, UINT64_MAX);
          runs.ForEach(begin, end,
                       [&](uint64_t number, uint64_t skipped, uint64_t from,
                           uint64_t length) {
                         for (uint64_t i = 0; i < length; ++i) {
                           found[from + i] =
                               runs.StoredAt(number) + skipped + i;
                         }
                         return true;
                       });
          ASSERT_EQ(found, ByHand(of, item, begin, end));
        }
      }
    }
  }
}

TEST(RectangleRuns, EndWhenTheCallerSaysSo) {
  const Numbers shape = {4, 5};
  const Numbers begin = {0, 1};
  const Numbers sizes = {4, 2};
  const RectangleRuns runs(2, shape, begin, sizes, {});
  EXPECT_EQ(runs.count(), 4u);
  int calls = 0;
  runs.ForEach(0, 40, [&](uint64_t, uint64_t, uint64_t, uint64_t) {
    return ++calls < 2;
  });
  EXPECT_EQ(calls, 2);
}

}  // namespace
}  // namespace haulway
