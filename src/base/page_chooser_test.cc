#include "base/page_chooser.h"

#include <gtest/gtest.h>

#include <chrono>
#include <functional>

namespace haulway {
namespace {

constexpr uint64_t kMillisecond = 1000 * 1000;

struct Spent {
  uint64_t huge_units = 0;
  uint64_t nanoseconds = 0;
};

// Asks for `count` units. `cost` returns the time each takes.
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
  // A host that must supply most of its blocks; some are available.
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
  // 64 MiB by two threads: one slow page is an eighth of all units, which is
  // enough.
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

TEST(PageTimer, TellsWhatAWholeUnitWouldHaveTaken) {
  PageChooser chooser;
  const PageKind kind = chooser.Next();
  {
    const PageTimer timer(&chooser, kind, 512, 2048);
    const auto start = std::chrono::steady_clock::now();
    while (std::chrono::steady_clock::now() - start <
           std::chrono::milliseconds(1)) {
    }
  }
  EXPECT_EQ(chooser.cost(kind).units, 1u);
  EXPECT_GE(chooser.cost(kind).nanoseconds, 4 * kMillisecond);
}

}  // namespace
}  // namespace haulway
