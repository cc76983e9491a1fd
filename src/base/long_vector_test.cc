#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <new>
#include <numeric>
#include <utility>

#include "haulway/buffer.h"

namespace haulway {
namespace {

TEST(LongVector, KeepsItsItemsWhileItGrowsFromShortToLong) {
  LongVector<uint64_t> numbers;
  for (uint64_t i = 0; i < 1'000'000; ++i) numbers.push_back(i);
  LongVector<uint64_t> copy = numbers;
  const LongVector<uint64_t> moved = std::move(numbers);
  EXPECT_EQ(moved, copy);
  copy.clear();
  copy.shrink_to_fit();
  EXPECT_EQ(std::accumulate(moved.begin(), moved.end(), uint64_t{0}),
            uint64_t{999'999} * 500'000);
}

TEST(LongVector, StartsAtAHugePageOnceItIsLong) {
  const LongVector<std::byte> bytes(3 << 20);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(bytes.data()) % (2 << 20), 0u);
}

TEST(LongVector, SizesThatCannotBeAreBadAlloc) {
  LongAllocator<uint64_t> allocator;
  for (const size_t count : {std::numeric_limits<size_t>::max(),
                             std::numeric_limits<size_t>::max() / 8,
                             std::numeric_limits<size_t>::max() / 16}) {
    EXPECT_THROW((void)allocator.allocate(count), std::bad_alloc);
  }
}

}  // namespace
}  // namespace haulway
