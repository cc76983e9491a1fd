#include "base/fresh_memory.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <functional>
#include <thread>
#include <vector>

namespace haulway {
namespace {

constexpr uint64_t kUnit = FreshMemory::kUnitBytes;
constexpr uint64_t kMillisecond = 1000 * 1000;

struct Spent {
  uint64_t huge_units = 0;
  uint64_t nanoseconds = 0;
};

// Asks for `count` units, each of which takes what `cost` says.
Spent Ask(PageChooser& chooser, uint64_t count,
          const std::function<uint64_t(PageKind kind, uint64_t unit)>& cost) {
  Spent spent;
  for (uint64_t unit = 0; unit < count; ++unit) {
    const PageKind kind = chooser.Next();
    const uint64_t took = cost(kind, unit);
    chooser.Took(kind, took);
    spent.nanoseconds += took;
    if (kind == PageKind::kHuge) ++spent.huge_units;
  }
  return spent;
}

TEST(PageChooser, TakesHugePagesWhereTheyCostLess) {
  PageChooser chooser;
  const Spent spent = Ask(chooser, 512, [](PageKind kind, uint64_t) {
    return kind == PageKind::kHuge ? kMillisecond / 4 : kMillisecond / 2;
  });
  EXPECT_EQ(spent.huge_units, 511u);
}

TEST(PageChooser, WastesLittleWhereTheyCostMore) {
  for (const uint64_t dear : {2, 6, 20}) {
    PageChooser chooser;
    const Spent spent = Ask(chooser, 2048, [&](PageKind kind, uint64_t) {
      return kind == PageKind::kHuge ? dear * kMillisecond : kMillisecond;
    });
    const uint64_t least = 2048 * kMillisecond;
    EXPECT_LE(spent.nanoseconds, least + least / 6 + dear * kMillisecond);
    EXPECT_GE(spent.huge_units, 3u) << "it is tried again";
  }
}

TEST(PageChooser, MindsNoDearOneNowAndThen) {
  PageChooser chooser;
  const Spent spent = Ask(chooser, 1024, [](PageKind kind, uint64_t unit) {
    if (kind == PageKind::kSmall) return kMillisecond;
    return unit % 16 == 15 ? 6 * kMillisecond : kMillisecond / 4;
  });
  EXPECT_GE(spent.huge_units, 1000u);
}

TEST(PageChooser, FollowsWhatChanges) {
  // A host that has to give its blocks back, but for some of them.
  PageChooser chooser;
  const auto is_at_hand = [](uint64_t unit) { return unit / 256 % 2 == 1; };
  uint64_t huge_at_hand = 0;
  uint64_t huge_away = 0;
  Ask(chooser, 1024, [&](PageKind kind, uint64_t unit) {
    if (kind == PageKind::kSmall) return kMillisecond;
    ++(is_at_hand(unit) ? huge_at_hand : huge_away);
    return is_at_hand(unit) ? kMillisecond / 4 : 6 * kMillisecond;
  });
  EXPECT_GT(huge_at_hand, 300u);
  EXPECT_LT(huge_away, 30u);
}

TEST(PageChooser, TriesOneHugePageAndNoMoreUntilItIsKnown) {
  PageChooser chooser;
  EXPECT_EQ(chooser.Next(), PageKind::kHuge);
  EXPECT_EQ(chooser.Next(), PageKind::kSmall);
  chooser.Took(PageKind::kSmall, kMillisecond);
  EXPECT_EQ(chooser.Next(), PageKind::kSmall);
  chooser.Took(PageKind::kHuge, 9 * kMillisecond);
  EXPECT_EQ(chooser.Next(), PageKind::kSmall);
  EXPECT_EQ(chooser.cost(PageKind::kHuge).units, 1u);
  EXPECT_EQ(chooser.cost(PageKind::kHuge).nanoseconds, 9 * kMillisecond);
}

TEST(PageChooser, CountsWhatTheFirstCostBeforeSmallPagesWereKnown) {
  // 64 MiB by two threads: one dear page is an eighth of all, and is enough.
  PageChooser chooser;
  EXPECT_EQ(chooser.Next(), PageKind::kHuge);
  EXPECT_EQ(chooser.Next(), PageKind::kSmall);
  chooser.Took(PageKind::kHuge, 5 * kMillisecond);
  chooser.Took(PageKind::kSmall, kMillisecond / 2);
  const Spent spent = Ask(chooser, 30, [](PageKind kind, uint64_t) {
    return kind == PageKind::kHuge ? 5 * kMillisecond : kMillisecond / 2;
  });
  EXPECT_EQ(spent.huge_units, 0u);
}

// Which units of 2 MiB have all of their pages in memory.
std::vector<bool> PresentUnits(std::span<const std::byte> memory) {
  std::vector<unsigned char> pages((memory.size() + 4095) / 4096);
  void* const begin = const_cast<std::byte*>(memory.data());
  EXPECT_EQ(::mincore(begin, memory.size(), pages.data()), 0);
  std::vector<bool> units;
  for (size_t page = 0; page < pages.size(); page += 512) {
    const auto end = std::min(page + 512, pages.size());
    units.push_back(std::all_of(
        pages.begin() + static_cast<std::ptrdiff_t>(page),
        pages.begin() + static_cast<std::ptrdiff_t>(end),
        [](unsigned char is_present) { return (is_present & 1) != 0; }));
  }
  return units;
}

TEST(FreshMemory, BringsInWhatIsAskedFor) {
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
