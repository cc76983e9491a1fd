#include "base/fresh_memory.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <thread>
#include <vector>

#include "base/page_bytes.h"

#ifndef MADV_POPULATE_WRITE  // Linux 5.14
#define MADV_POPULATE_WRITE 23
#endif

namespace haulway {
namespace {

constexpr uint64_t kUnit = FreshMemory::kUnitBytes;

// Returns, for each unit of 2 MiB, whether all its pages are in memory.
std::vector<bool> PresentUnits(std::span<const std::byte> memory) {
  std::vector<unsigned char> pages((memory.size() + PageBytes() - 1) /
                                   PageBytes());
  void* const begin = const_cast<std::byte*>(memory.data());
  EXPECT_EQ(::mincore(begin, memory.size(), pages.data()), 0);
  std::vector<bool> units;
  const size_t per_unit = kUnit / PageBytes();
  for (size_t page = 0; page < pages.size(); page += per_unit) {
    const auto end = std::min(page + per_unit, pages.size());
    units.push_back(std::all_of(
        pages.begin() + static_cast<std::ptrdiff_t>(page),
        pages.begin() + static_cast<std::ptrdiff_t>(end),
        [](unsigned char is_present) { return (is_present & 1) != 0; }));
  }
  return units;
}

// Whether pages are there when the kernel says that it brought them in.
// qemu-user says so and does nothing.
bool BringsPagesIn() {
  void* const page = ::mmap(nullptr, PageBytes(), PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  const bool told = ::madvise(page, PageBytes(), MADV_POPULATE_WRITE) == 0;
  unsigned char present = 0;
  EXPECT_EQ(::mincore(page, PageBytes(), &present), 0);
  ::munmap(page, PageBytes());
  return !told || (present & 1) != 0;
}

TEST(FreshMemory, BringsInWhatIsAskedFor) {
  if (!BringsPagesIn()) GTEST_SKIP() << "no pages are brought in here";
  auto memory = FreshMemory::Allocate(8 * kUnit + 1);
  ASSERT_TRUE(memory.ok());
  const auto bytes = memory->buffer().mutable_bytes();
  EXPECT_EQ(bytes.size(), 8 * kUnit + 1);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(bytes.data()) % kUnit, 0u);
  EXPECT_EQ(PresentUnits(bytes), std::vector<bool>(9, false));

  memory->BringIn(bytes.subspan(2 * kUnit - 1, 2));
  memory->BringIn(bytes.last(1));
  memory->BringIn(bytes.subspan(5, 0));
  EXPECT_EQ(PresentUnits(bytes),
            (std::vector<bool>{false, true, true, false, false, false, false,
                               false, true}));
  EXPECT_NE(memory->Describe(), "");
  EXPECT_TRUE(
      std::ranges::all_of(bytes, [](std::byte b) { return b == std::byte{}; }));
}

TEST(FreshMemory, KeepsWhatWasWrittenMeanwhile) {
  auto memory = FreshMemory::Allocate(64 * kUnit);
  ASSERT_TRUE(memory.ok());
  const auto bytes = memory->buffer().mutable_bytes();
  const auto write = [&](size_t first) {
    for (size_t unit = 0; unit < 64; ++unit) {
      const auto part = bytes.subspan(unit * kUnit, kUnit);
      memory->BringIn(part);
      for (size_t i = first; i < part.size(); i += 8192) {
        part[i] = static_cast<std::byte>(unit + 1);
      }
    }
  };
  std::thread other([&] { write(4096); });
  write(0);
  other.join();
  for (size_t i = 0; i < bytes.size(); i += 4096) {
    ASSERT_EQ(bytes[i], static_cast<std::byte>(i / kUnit + 1)) << i;
  }
}

TEST(FreshMemory, ChoosesNothingForLittle) {
  auto memory = FreshMemory::Allocate(FreshMemory::kSmallestChosen - 1);
  ASSERT_TRUE(memory.ok());
  memory->BringIn(memory->buffer().bytes());
  EXPECT_EQ(memory->Describe(), "");
  EXPECT_EQ(PresentUnits(memory->buffer().bytes()),
            std::vector<bool>(4, false));
  ASSERT_TRUE(FreshMemory::Allocate(0).ok());
  EXPECT_EQ(FreshMemory::Allocate(~uint64_t{0}).status().code(), Code::kLimit);
}

TEST(FreshMemory, AllocateBufferTouchesLittle) {
  auto memory = AllocateBuffer(64 * kUnit);
  ASSERT_TRUE(memory.ok());
  const auto present = PresentUnits(memory->bytes());
  EXPECT_LE(std::ranges::count(present, true), 2);
}

}  // namespace
}  // namespace haulway
