#include "base/host_memory.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "base/fresh_memory.h"
#include "base/page_bytes.h"
#include "haulway/options.h"

namespace haulway {
namespace {

TEST(WholePages, AreWholeWhateverTheKernelsPages) {
  alignas(64) static std::byte bytes[1 << 18];
  const auto pages = WholePages(std::span(bytes).subspan(1, (1 << 18) - 2));
  ASSERT_FALSE(pages.empty());
  EXPECT_EQ(reinterpret_cast<uintptr_t>(pages.data()) % PageBytes(), 0U);
  EXPECT_EQ(pages.size() % PageBytes(), 0U);
  EXPECT_TRUE(WholePages(std::span(bytes).first(1)).empty());
}

// Advice to the kernel that begins at a page and ends within one is taken for
// all of the last.
TEST(ReclaimableSlice, LeavesWhatComesBehindAlone) {
  constexpr uint64_t kFirst = 2 * kMiB + 4 * kKiB;
  auto memory = AllocateBuffer(8 * kMiB);
  ASSERT_TRUE(memory.ok());
  std::memset(memory->mutable_bytes().data(), 7, 8 * kMiB);
  Buffer first = ReclaimableSlice(*memory, 0, kFirst);
  const Buffer second = ReclaimableSlice(*memory, kFirst, 2 * kMiB);
  *memory = Buffer();
  first = Buffer();
  EXPECT_TRUE(std::ranges::all_of(
      second.bytes(), [](std::byte byte) { return byte == std::byte{7}; }));
}

}  // namespace
}  // namespace haulway
