// Tests units with their own memory, through both ends of an arena.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "haulway/arena.h"
#include "haulway/items.h"
#include "haulway/worker.h"
#include "testing/shorthands.h"

namespace haulway {
namespace {

struct SmallArena {
  explicit SmallArena(ArenaKind kind, uint64_t overflow_bytes = UINT64_MAX) {
    ArenaOptions options;
    options.kind = kind;
    options.max_bytes = 1 << 16;
    options.unit_bytes = 1 << 12;
    options.max_units = 4;
    options.overflow_bytes = overflow_bytes;
    arena = Arena::Create(options).value();
    writer = std::move(arena->OpenWriter()).value();
    reader = std::move(arena->OpenReader()).value();
  }
  std::shared_ptr<Arena> arena;
  std::unique_ptr<ArenaWriter> writer;
  std::unique_ptr<ArenaReader> reader;
};

ArenaRange Wanted(uint64_t bytes) { return {{}, 0, bytes}; }

TEST(Apart, IsReadLikeAnyUnit) {
  for (const ArenaKind kind : {ArenaKind::kVariable, ArenaKind::kPool}) {
    SmallArena ends(kind);
    for (int round = 0; round < 20; ++round) {
      ArenaRange ranges[] = {Wanted(3 * test::kMib + 1), Wanted(100),
                             Wanted(test::kMib)};
      ASSERT_TRUE(ends.writer->BeginApart(ranges).ok());
      for (const ArenaRange& range : ranges) {
        EXPECT_EQ(range.offset % 64, 0u);
        const std::vector<std::byte> bytes(range.bytes, std::byte(round + 1));
        ends.writer->Fill(range, bytes);
      }
      const UnitRef unit = ends.writer->Commit().value();
      const auto claim = ends.reader->Claim(unit).value();
      for (const ArenaRange& range : ranges) {
        const Buffer view =
            ends.reader->View(claim, range.offset, range.bytes).value();
        EXPECT_TRUE(std::ranges::all_of(view.bytes(), [&](std::byte byte) {
          return byte == std::byte(round + 1);
        }));
      }
    }
    const ArenaStats stats = ends.arena->stats();
    EXPECT_EQ(stats.overflows, 20u);
    EXPECT_EQ(stats.units, 20u);
    // One unit at a time always uses the same memory.
    EXPECT_LE(stats.high_water, 6 * test::kMib);
  }
}

TEST(Apart, ViewsOutliveTheEndsAndTheArena) {
  Buffer view;
  {
    SmallArena ends(ArenaKind::kVariable);
    ArenaRange range = Wanted(2 * test::kMib);
    ASSERT_TRUE(ends.writer->BeginApart({&range, 1}).ok());
    std::memset(ends.writer->At(range).data(), 7, range.bytes);
    const UnitRef unit = ends.writer->Commit().value();
    const auto claim = ends.reader->Claim(unit).value();
    view = ends.reader->View(claim, range.offset, range.bytes).value();
  }
  EXPECT_TRUE(std::ranges::all_of(
      view.bytes(), [](std::byte byte) { return byte == std::byte{7}; }));
}

TEST(Apart, IsRefusedWhereItIsOfNoUse) {
  ArenaRange range = Wanted(2 * test::kMib);
  for (const ArenaKind kind : {ArenaKind::kVariable, ArenaKind::kPool}) {
    SmallArena none(kind, 0);
    EXPECT_EQ(none.writer->BeginApart({&range, 1}).code(), Code::kLimit);
    EXPECT_FALSE(none.writer->in_unit());
  }
  SmallArena ring(ArenaKind::kRing);
  EXPECT_EQ(ring.writer->BeginApart({&range, 1}).code(), Code::kLimit);
  SmallArena ends(ArenaKind::kVariable);
  ArenaRange small = Wanted(5000);
  EXPECT_EQ(ends.writer->BeginApart({&small, 1}).code(), Code::kLimit);
  ArenaRange huge[] = {Wanted(UINT64_MAX), Wanted(2)};
  EXPECT_EQ(ends.writer->BeginApart(huge).code(), Code::kLimit);
  EXPECT_EQ(ends.arena->stats().overflows, 0u);
  // The unit has all the memory it asked for.
  ASSERT_TRUE(ends.writer->BeginApart({&range, 1}).ok());
  EXPECT_EQ(ends.writer->BeginApart({&range, 1}).code(),
            Code::kInvalidArgument);
  EXPECT_EQ(ends.writer->Reserve(1, 0).status().code(), Code::kLimit);
  ASSERT_TRUE(ends.writer->Abort().ok());
  EXPECT_EQ(ends.arena->stats().used, 0u);
}

TEST(Apart, NeedsAUnitThatIsFree) {
  SmallArena ends(ArenaKind::kVariable);
  for (int i = 0; i < 4; ++i) {
    ASSERT_TRUE(ends.writer->Begin(0).ok());
    ASSERT_TRUE(ends.writer->Commit().ok());
  }
  ArenaRange range = Wanted(2 * test::kMib);
  EXPECT_EQ(ends.writer->BeginApart({&range, 1}).code(), Code::kTimeout);
}

TEST(Apart, RangesBeyondTheFileAreRefused) {
  SmallArena ends(ArenaKind::kVariable);
  ArenaRange range = Wanted(2 * test::kMib);
  ASSERT_TRUE(ends.writer->BeginApart({&range, 1}).ok());
  const UnitRef unit = ends.writer->Commit().value();
  const auto claim = ends.reader->Claim(unit).value();
  for (const auto& [offset, bytes] : std::vector<std::pair<uint64_t, uint64_t>>{
           {range.offset, 2 * test::kMib + 1},
           {range.offset + 2 * test::kMib, 1},
           {range.offset, 0},
           {range.offset, UINT64_MAX},
           {UINT64_MAX, 1},
           {UINT64_MAX - 4096, 4096},
           {INT64_MAX, 1}}) {
    EXPECT_EQ(ends.reader->View(claim, offset, bytes).status().code(),
              Code::kCorrupt)
        << offset << " " << bytes;
  }
  EXPECT_TRUE(ends.reader->View(claim, range.offset + 5, 77).ok());
}

TEST(Apart, CarriesAnItemThatIsTooLarge) {
  SmallArena ends(ArenaKind::kVariable);
  const auto channel = Channel::Create({}).value();
  const auto sender = std::move(channel->OpenSender(-1)).value();
  const auto receiver = std::move(channel->OpenReceiver(-1)).value();
  const uint32_t epoch = receiver->StartPass();
  const std::vector<std::byte> large(5 * test::kMib, std::byte{3});
  const std::span<const std::byte> part = large;
  const Item item = Item::Tensor(0, DType::kU8, {5 * test::kMib});
  ASSERT_TRUE(
      SendItem(*sender, ends.writer.get(), epoch, item, {&part, 1}).value());
  const Message message = receiver->Receive(0).value();
  EXPECT_LT(message.bytes.size(), 1000u);
  const ReceivedItem received = OpenItem(message, ends.reader.get()).value();
  EXPECT_TRUE(std::ranges::equal(received.parts[0].bytes(), part));
  EXPECT_EQ(ends.arena->stats().overflows, 1u);
  EXPECT_EQ(ends.arena->stats().fallbacks, 1u);
}

}  // namespace
}  // namespace haulway
