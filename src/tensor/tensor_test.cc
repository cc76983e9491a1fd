#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "base/host_memory.h"
#include "haulway/buffer.h"
#include "haulway/dtype.h"
#include "haulway/signs.h"
#include "haulway/tree.h"
#include "tensor/byte_swap.h"
#include "tensor/payload_digest.h"
#include "tensor/strided.h"

namespace haulway {
namespace {

constexpr int64_t kLargest = std::numeric_limits<int64_t>::max();

TEST(DType, NumpyHasCodesOfWhatIsItsOwn) {
  for (const DTypeInfo& info : AllDTypes()) {
    const std::string code = NumpyCode(info.dtype);
    if (info.in_numpy == InNumpy::kItself) {
      EXPECT_EQ(DTypeFromNumpyCode(code), info.dtype) << info.name;
      EXPECT_EQ(NumpyBits(info.dtype), info.dtype) << info.name;
    } else {
      EXPECT_EQ(code, "") << info.name;
      EXPECT_EQ(Describe(NumpyBits(info.dtype)).in_numpy, InNumpy::kItself)
          << info.name;
    }
  }
  EXPECT_EQ(NumpyCode(DType::kC128), "c16");
  EXPECT_EQ(NumpyCode(DType::kBool), "b1");
  for (const std::string_view none : {"", "f", "f1", "f88", "x4", "bool"}) {
    EXPECT_EQ(DTypeFromNumpyCode(none), std::nullopt) << none;
  }
}

TEST(DType, NamesAreUniqueAndFoundAgain) {
  std::set<std::string_view> names;
  for (int i = 0; i < kDTypeCount; ++i) {
    const auto& info = Describe(static_cast<DType>(i));
    EXPECT_TRUE(names.insert(info.name).second) << info.name;
    EXPECT_EQ(DTypeFromName(info.name), info.dtype);
    if (info.torch_name.empty()) {
      // torch has no such dtype.
      EXPECT_EQ(DTypeFromTorchName(""), std::nullopt);
    } else {
      EXPECT_EQ(DTypeFromTorchName(info.torch_name), info.dtype);
    }
    EXPECT_EQ(info.item_bytes % info.swap_bytes, 0);
  }
  EXPECT_EQ(DTypeFromName("F31"), std::nullopt);
}

template <class T>
std::vector<T> Resolved(std::vector<T> elements, DType dtype, Signs signs) {
  ResolveSigns(signs, dtype, std::as_writable_bytes(std::span(elements)));
  return elements;
}

TEST(ResolveSigns, ChangesTheSignsThatDiffer) {
  constexpr Signs kConjugate{.conjugate = true};
  constexpr Signs kNegative{.negative = true};
  constexpr Signs kBoth{.conjugate = true, .negative = true};
  using Floats = std::vector<float>;
  const Floats floats = {1, -2, 0.5, -4};
  EXPECT_EQ(Resolved(floats, DType::kC64, {}), floats);
  EXPECT_EQ(Resolved(floats, DType::kC64, kConjugate), Floats({1, 2, 0.5, 4}));
  EXPECT_EQ(Resolved(floats, DType::kC64, kNegative), Floats({-1, 2, -0.5, 4}));
  EXPECT_EQ(Resolved(floats, DType::kC64, kBoth), Floats({-1, -2, -0.5, -4}));
  EXPECT_EQ(Resolved(floats, DType::kF32, kConjugate), floats);
  EXPECT_EQ(Resolved(floats, DType::kF32, kNegative), Floats({-1, 2, -0.5, 4}));
  using Ints = std::vector<int16_t>;
  EXPECT_EQ(Resolved(Ints{1, 0, -256, INT16_MIN}, DType::kI16, kNegative),
            Ints({-1, 0, 256, INT16_MIN}));
  using Bytes = std::vector<uint8_t>;
  EXPECT_EQ(Resolved(Bytes{0, 1, 255}, DType::kU8, kNegative),
            Bytes({0, 255, 1}));
}

TEST(ResolveSigns, TakesNumbersWithAUsualSign) {
  for (const DType dtype :
       {DType::kF64, DType::kBF16, DType::kC32, DType::kI8, DType::kU64}) {
    EXPECT_TRUE(HasSigns(dtype)) << Name(dtype);
  }
  for (const DType dtype : {DType::kBool, DType::kF8E4M3FNUZ, DType::kQI8,
                            DType::kI4, DType::kBits8, DType::kQ4K}) {
    EXPECT_FALSE(HasSigns(dtype)) << Name(dtype);
  }
}

TEST(ByteSwap, ReversesEachUnit) {
  std::string text = "abcdefgh";
  const auto swap = [&](uint8_t unit) {
    std::string copy = text;
    SwapBytes(std::as_writable_bytes(std::span(copy)), unit);
    return copy;
  };
  EXPECT_EQ(swap(1), "abcdefgh");
  EXPECT_EQ(swap(2), "badcfehg");
  EXPECT_EQ(swap(4), "dcbahgfe");
  EXPECT_EQ(swap(8), "hgfedcba");
}

TEST(Strided, CountsWithoutOverflow) {
  EXPECT_EQ(CountElements({}), 1u);
  EXPECT_EQ(CountElements(std::vector<int64_t>{2, 3, 4}), 24u);
  EXPECT_EQ(CountElements(std::vector<int64_t>{kLargest, kLargest, kLargest}),
            std::nullopt);
  EXPECT_EQ(CountElements(std::vector<int64_t>{kLargest, kLargest, 0}), 0u);
}

TEST(Strided, FindsTheLastElementReached) {
  EXPECT_EQ(ElementExtent({}, {}), 1u);
  EXPECT_EQ(
      ElementExtent(std::vector<int64_t>{2, 3}, std::vector<int64_t>{10, 2}),
      15u);
  EXPECT_EQ(ElementExtent(std::vector<int64_t>{5}, std::vector<int64_t>{0}),
            1u);
  EXPECT_EQ(ElementExtent(std::vector<int64_t>{kLargest, 0},
                          std::vector<int64_t>{kLargest, 1}),
            0u);
  EXPECT_EQ(ElementExtent(std::vector<int64_t>{kLargest, kLargest},
                          std::vector<int64_t>{kLargest, 1}),
            std::nullopt);
}

TEST(Strided, KnowsRowMajorOrder) {
  EXPECT_TRUE(IsContiguous({}, {}));
  EXPECT_TRUE(IsContiguous(std::vector<int64_t>{2, 1, 3},
                           std::vector<int64_t>{3, 99, 1}));
  EXPECT_FALSE(
      IsContiguous(std::vector<int64_t>{2, 3}, std::vector<int64_t>{1, 2}));
  EXPECT_TRUE(
      IsContiguous(std::vector<int64_t>{2, 0}, std::vector<int64_t>{7, 7}));
  EXPECT_TRUE(
      IsContiguous(std::vector<int64_t>{0, 2}, std::vector<int64_t>{7, 7}));
}

TEST(Strided, GathersTransposedAndExpandedElements) {
  std::vector<uint16_t> data(12);
  std::iota(data.begin(), data.end(), uint16_t{0});
  std::vector<uint16_t> out(6);
  const auto gather = [&](std::vector<int64_t> shape,
                          std::vector<int64_t> strides) {
    GatherElements(reinterpret_cast<const std::byte*>(data.data()), shape,
                   strides, 2, std::as_writable_bytes(std::span(out)));
    return out;
  };
  EXPECT_EQ(gather({3, 2}, {1, 3}), (std::vector<uint16_t>{0, 3, 1, 4, 2, 5}));
  EXPECT_EQ(gather({2, 3}, {0, 1}), (std::vector<uint16_t>{0, 1, 2, 0, 1, 2}));
  EXPECT_EQ(gather({2, 3}, {6, 2}), (std::vector<uint16_t>{0, 2, 4, 6, 8, 10}));
  EXPECT_EQ(gather({6}, {1}), (std::vector<uint16_t>{0, 1, 2, 3, 4, 5}));
}

TEST(HostMemory, IsZeroedAndAlignedForHugePages) {
  auto small = AllocateBuffer(100);
  ASSERT_TRUE(small.ok());
  EXPECT_EQ(small->size(), 100u);
  EXPECT_EQ(small->bytes()[99], std::byte{0});
  auto large = AllocateBuffer(5 << 20);
  ASSERT_TRUE(large.ok());
  EXPECT_EQ(reinterpret_cast<uintptr_t>(large->data()) % (2 << 20), 0u);
  EXPECT_EQ(AllocateBuffer(0)->mutable_bytes().size(), 0u);
}

TEST(HostMemory, RefusesWhatTheSystemCannotGive) {
  EXPECT_EQ(AllocateBuffer(~uint64_t{0}).status().code(), Code::kLimit);
  EXPECT_EQ(AllocateBuffer(uint64_t{1} << 60).status().code(), Code::kLimit);
}

TEST(HostMemory, ASliceOutlivesItsAllocationAndGivesPagesBack) {
  auto memory = AllocateBuffer(8 << 20);
  ASSERT_TRUE(memory.ok());
  std::memset(memory->mutable_bytes().data(), 7, 8 << 20);
  Buffer first = ReclaimableSlice(*memory, 0, 4 << 20);
  Buffer second = ReclaimableSlice(*memory, 4 << 20, 4 << 20);
  const std::byte* start = memory->data();
  memory = Buffer();
  first = Buffer();
  EXPECT_EQ(start[0], std::byte{0}) << "pages of the dropped slice are gone";
  EXPECT_EQ(second.bytes()[0], std::byte{7});
}

// Returns the number of payloads in each group.
std::vector<size_t> Runs(const std::vector<uint64_t>& bytes, size_t most,
                         int threads, uint64_t least_bytes = 0) {
  std::vector<uint32_t> order(bytes.size());
  std::iota(order.begin(), order.end(), 0);
  std::vector<size_t> runs;
  for (const auto run : GroupPayloads(
           order, most, threads, [&](uint32_t i) { return bytes[i]; },
           least_bytes)) {
    runs.push_back(run.size());
  }
  return runs;
}

TEST(GroupPayloads, CutsRunsThatLeaveAllThreadsEnough) {
  using Sizes = std::vector<size_t>;
  EXPECT_EQ(Runs({}, 4, 2), Sizes({}));
  EXPECT_EQ(Runs({100, 1, 1, 1, 1, 1}, 4, 2), Sizes({1, 4, 1}));
  EXPECT_EQ(Runs({8, 8, 8, 8, 8, 8, 8, 8}, 8, 2), Sizes({2, 2, 2, 2}));
  EXPECT_EQ(Runs({8, 8, 8, 8, 8, 8, 8, 8}, 1, 1), Sizes(8, 1));
}

TEST(GroupPayloads, HandsOutNoLessThanIsWorthIt) {
  using Sizes = std::vector<size_t>;
  const std::vector<uint64_t> small(64, 8);
  EXPECT_EQ(Runs(small, 2, 1, 128), Sizes(4, 16));
  EXPECT_EQ(Runs(small, 2, 4, 128), Sizes(8, 8)) << "all threads have some";
  EXPECT_EQ(Runs(small, 32, 1, 128), Sizes(2, 32)) << "of `most` at least";
}

TEST(TreeArena, KeepsWhatItHandsOut) {
  TreeArena arena;
  std::vector<std::string_view> copies;
  for (int i = 0; i < 20000; ++i) {
    copies.push_back(arena.Copy("value " + std::to_string(i)));
  }
  void* large = arena.Allocate(32 << 20);
  std::memset(large, 1, 32 << 20);
  for (int i = 0; i < 20000; ++i) {
    ASSERT_EQ(copies[i], "value " + std::to_string(i));
  }
  EXPECT_GE(arena.allocated_bytes(), uint64_t{32} << 20);
}

}  // namespace
}  // namespace haulway
