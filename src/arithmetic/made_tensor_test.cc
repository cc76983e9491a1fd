#include "arithmetic/made_tensor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "haulway/source.h"

namespace haulway::arithmetic {
namespace {

// Numbers from `first` on.
MadeTensor Count(std::vector<int64_t> shape, float first = 0) {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  std::vector<float> numbers(static_cast<size_t>(count));
  std::iota(numbers.begin(), numbers.end(), first);
  Buffer bytes = *AllocateBuffer(numbers.size() * sizeof(float));
  std::ranges::copy(std::as_bytes(std::span(numbers)),
                    bytes.mutable_bytes().begin());
  return {
      DType::kF32, std::move(shape), MakeBufferSource(std::move(bytes)), {}};
}

std::vector<float> NumbersOf(const MadeTensor& tensor) {
  std::vector<float> numbers(tensor.bytes->size() / sizeof(float));
  EXPECT_TRUE(
      tensor.bytes->ReadAt(0, std::as_writable_bytes(std::span(numbers))).ok());
  return numbers;
}

TEST(MadeTensor, IsJoinedAndCut) {
  const std::array parts = {Count({2, 2}), Count({2, 1}, 10)};
  const MadeTensor joined = *Join(parts, 1);
  EXPECT_EQ(joined.shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(NumbersOf(joined), (std::vector<float>{0, 1, 10, 2, 3, 11}));
  EXPECT_EQ(NumbersOf(*Cut(joined, 1, 1, 2)),
            (std::vector<float>{1, 10, 3, 11}));
  EXPECT_EQ(NumbersOf(*Cut(joined, 0, 1, 1)), (std::vector<float>{2, 3, 11}));
  EXPECT_EQ(NumbersOf(*Cut(joined, 0, 2, 0)), (std::vector<float>{}));
}

TEST(MadeTensor, IsTransposed) {
  const auto kept = std::make_shared<KeptPanels>();
  const MadeTensor from = Count({2, 3, 2});
  const std::array<size_t, 3> dims = {2, 0, 1};
  const MadeTensor made = *Transpose(from, dims, kept);
  EXPECT_EQ(made.shape, (std::vector<int64_t>{2, 2, 3}));
  EXPECT_EQ(NumbersOf(made),
            (std::vector<float>{0, 2, 4, 6, 8, 10, 1, 3, 5, 7, 9, 11}));
}

TEST(MadeTensor, IsChanged) {
  EXPECT_EQ(NumbersOf(*Change(Count({3}), NumberChange::kAdd, -1, DType::kF32)),
            (std::vector<float>{-1, 0, 1}));
  EXPECT_EQ(
      NumbersOf(*Change(Count({3}), NumberChange::kMultiply, 2, DType::kF32)),
      (std::vector<float>{0, 2, 4}));
  const MadeTensor half =
      *Change(Count({3}), NumberChange::kNone, 0, DType::kBF16);
  EXPECT_EQ(half.bytes->size(), 6u);
  EXPECT_EQ(NumbersOf(*Change(half, NumberChange::kNone, 0, DType::kF32)),
            (std::vector<float>{0, 1, 2}));
}

// More than one panel, in the last dimension and before.
TEST(MadeTensor, RangesArePartsOfTheWhole) {
  const auto kept = std::make_shared<KeptPanels>();
  const std::array<size_t, 3> dims = {0, 2, 1};
  const std::array parts = {Count({2, 1100, 700}), Count({2, 3, 700}, 7)};
  const MadeTensor made =
      *Change(*Cut(*Transpose(*Join(parts, 1), dims, kept), 1, 2, 690),
              NumberChange::kAdd, 1, DType::kBF16);
  std::vector<std::byte> whole(made.bytes->size());
  ASSERT_EQ(whole.size(), 2u * 690 * 1103 * 2);
  ASSERT_TRUE(made.bytes->ReadAt(0, whole).ok());
  std::mt19937 random(1);
  for (int i = 0; i < 50; ++i) {
    const size_t begin = random() % whole.size();
    const size_t length =
        random() % std::min<size_t>(whole.size() - begin, 9999);
    std::vector<std::byte> part(length);
    ASSERT_TRUE(made.bytes->ReadAt(begin, part).ok());
    EXPECT_TRUE(std::equal(part.begin(), part.end(),
                           whole.begin() + static_cast<ptrdiff_t>(begin)));
  }
}

TEST(MadeTensor, RefusesSizesThatOverflow) {
  const int64_t large = INT64_MAX / 2 + 1;
  MadeTensor empty = Count({0});
  empty.shape = {0, large, large};
  EXPECT_EQ(Cut(empty, 1, 0, 1).status().code(), Code::kLimit);
  const std::array parts = {empty, empty};
  EXPECT_EQ(Join(parts, 1).status().code(), Code::kLimit);
}

}  // namespace
}  // namespace haulway::arithmetic
