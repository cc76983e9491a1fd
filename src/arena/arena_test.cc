#include "haulway/arena.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "arena/fd_socket.h"
#include "base/page_bytes.h"
#include "testing/shorthands.h"

namespace haulway {
namespace {

std::span<const std::byte> Bytes(const std::string& text) {
  return std::as_bytes(std::span(text));
}
std::string Text(const Buffer& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

struct Ends {
  explicit Ends(const ArenaOptions& options) {
    arena = Arena::Create(options).value();
    writer = std::move(arena->OpenWriter()).value();
    reader = std::move(arena->OpenReader()).value();
  }

  // Commits one unit with one range.
  ArenaRange Put(const std::string& text, uint64_t wait_ns = 0) {
    EXPECT_TRUE(writer->Begin(wait_ns).ok());
    const ArenaRange range = writer->Write(Bytes(text), wait_ns).value();
    EXPECT_TRUE(writer->Commit().ok());
    return range;
  }
  Buffer Get(const ArenaRange& range) {
    const auto claim = reader->Claim(range.unit).value();
    return reader->View(claim, range.offset, range.bytes).value();
  }

  std::shared_ptr<Arena> arena;
  std::unique_ptr<ArenaWriter> writer;
  std::unique_ptr<ArenaReader> reader;
};

ArenaOptions Variable(uint64_t bytes, uint32_t units = 64) {
  ArenaOptions options;
  options.max_bytes = bytes;
  options.max_units = units;
  return options;
}
ArenaOptions Pool(uint64_t bytes, uint32_t count) {
  ArenaOptions options;
  options.kind = ArenaKind::kPool;
  options.unit_bytes = bytes;
  options.max_units = count;
  return options;
}
ArenaOptions Ring(uint64_t bytes) {
  ArenaOptions options;
  options.kind = ArenaKind::kRing;
  options.max_bytes = bytes;
  return options;
}

TEST(Arena, ReadsBackWhatWasWritten) {
  for (const auto& options : {Variable(4096), Pool(1024, 2), Ring(4096)}) {
    Ends ends(options);
    EXPECT_EQ(Text(ends.Get(ends.Put("payload"))), "payload");
  }
}

TEST(Arena, AlignsPayloadsToCacheLines) {
  Ends ends(Pool(1024, 2));
  ASSERT_TRUE(ends.writer->Begin(0).ok());
  for (const char* text : {"a", "bc", "def"}) {
    const ArenaRange range = ends.writer->Write(Bytes(text), 0).value();
    EXPECT_EQ(range.offset % 64, 0u);
  }
}

TEST(Arena, ReleasesInAnyOrder) {
  Ends ends(Variable(4 * 64, 4));
  std::vector<Buffer> held;
  for (int i = 0; i < 4; ++i) {
    held.push_back(ends.Get(ends.Put(std::string(64, 'a' + i))));
  }
  EXPECT_EQ(ends.writer->Begin(0).code(), Code::kTimeout);
  held.erase(held.begin() + 2);
  const Buffer fifth = ends.Get(ends.Put(std::string(64, 'z')));
  EXPECT_EQ(Text(held[0]), std::string(64, 'a'));
  EXPECT_EQ(Text(held[2]), std::string(64, 'd'));
  EXPECT_EQ(Text(fifth), std::string(64, 'z'));
}

TEST(Arena, HoldsAUnitUntilTheLastViewIsGone) {
  Ends ends(Pool(64, 1));
  Buffer part;
  {
    const Buffer whole = ends.Get(ends.Put("held by a part"));
    part = whole.Slice(5, 2);
  }
  EXPECT_EQ(ends.writer->Begin(0).code(), Code::kTimeout);
  EXPECT_EQ(Text(part), "by");
  part = Buffer();
  EXPECT_TRUE(ends.writer->Begin(0).ok());
}

TEST(Arena, ViewsOutliveTheArena) {
  Buffer view;
  {
    Ends ends(Variable(4096));
    view = ends.Get(ends.Put("still here"));
  }
  EXPECT_EQ(Text(view), "still here");
}

TEST(Arena, RejectsWhatCanNeverFit) {
  for (const auto& options : {Variable(128), Pool(128, 2), Ring(128)}) {
    Ends ends(options);
    ASSERT_TRUE(ends.writer->Begin(0).ok());
    EXPECT_EQ(
        ends.writer->Write(Bytes(std::string(129, 'x')), 60 * test::kSecond)
            .status()
            .code(),
        Code::kLimit);
    ASSERT_TRUE(ends.writer->Write(Bytes(std::string(100, 'x')), 0).ok());
    EXPECT_EQ(
        ends.writer->Write(Bytes(std::string(100, 'x')), 60 * test::kSecond)
            .status()
            .code(),
        Code::kLimit);
    EXPECT_TRUE(ends.writer->Abort().ok());
    EXPECT_EQ(Text(ends.Get(ends.Put(std::string(128, 'y')))),
              std::string(128, 'y'));
  }
}

TEST(Arena, RingCountsBytesAndWraps) {
  Ends ends(Ring(8 * 1024));
  ASSERT_TRUE(ends.writer->Begin(0).ok());
  ASSERT_TRUE(ends.writer->Write(Bytes("12345"), 0).ok());
  EXPECT_EQ(ends.arena->stats().committed_bytes, 0u);
  ASSERT_TRUE(ends.writer->Write(Bytes("678"), 0).ok());
  const UnitRef unit = ends.writer->Commit().value();
  EXPECT_EQ(ends.arena->stats().committed_bytes, 8u);
  ends.reader->Claim(unit).value().reset();
  EXPECT_EQ(ends.arena->stats().released_bytes, 8u);
  for (int i = 0; i < 100; ++i) {
    std::string text(5000, static_cast<char>('a' + i % 26));
    text += std::to_string(i);
    EXPECT_EQ(Text(ends.Get(ends.Put(text))), text);
  }
}

TEST(Arena, WaitsForARelease) {
  Ends ends(Pool(64, 1));
  Buffer held = ends.Get(ends.Put("one"));
  std::thread consumer([&] { held = Buffer(); });
  EXPECT_EQ(Text(ends.Get(ends.Put("two", 10 * test::kSecond))), "two");
  consumer.join();
}

TEST(Arena, ShutdownWakesAWaitingProducer) {
  Ends ends(Pool(64, 1));
  const Buffer held = ends.Get(ends.Put("one"));
  std::thread closer([&] { ends.arena->Shutdown(); });
  EXPECT_EQ(ends.writer->Begin(60 * test::kSecond).code(), Code::kCancelled);
  closer.join();
}

TEST(Arena, TimesOutWithNumbers) {
  Ends ends(Pool(64, 1));
  const Buffer held = ends.Get(ends.Put("one"));
  const Status full = ends.writer->Begin(1'000'000);
  EXPECT_EQ(full.code(), Code::kTimeout);
  EXPECT_THAT(std::string(full.message()),
              testing::HasSubstr("64 of 64 bytes and 1 of 1 units"));
}

TEST(Arena, MisuseIsAnError) {
  Ends ends(Variable(4096));
  EXPECT_EQ(ends.writer->Write(Bytes("x"), 0).status().code(),
            Code::kInvalidArgument);
  EXPECT_EQ(ends.writer->Commit().status().code(), Code::kInvalidArgument);
  EXPECT_EQ(ends.writer->Abort().code(), Code::kInvalidArgument);
  ASSERT_TRUE(ends.writer->Begin(0).ok());
  EXPECT_EQ(ends.writer->Begin(0).code(), Code::kInvalidArgument);
}

TEST(Arena, ChecksDescriptors) {
  Ends ends(Variable(4096));
  const ArenaRange range = ends.Put("x");
  const auto claim = ends.reader->Claim(range.unit).value();
  EXPECT_EQ(ends.reader->View(claim, PageBytes() - 96, 97).status().code(),
            Code::kCorrupt);
  EXPECT_EQ(ends.reader->View(claim, UINT64_MAX, 1).status().code(),
            Code::kCorrupt);
  EXPECT_EQ(ends.reader->View(claim, 1, UINT64_MAX).status().code(),
            Code::kCorrupt);
  EXPECT_EQ(ends.reader->Claim({64, 1}).status().code(), Code::kCorrupt);
  EXPECT_EQ(ends.reader->Claim({range.unit.slot, 0}).status().code(),
            Code::kCorrupt);
  EXPECT_EQ(ends.reader->Claim({range.unit.slot, range.unit.generation + 1})
                .status()
                .code(),
            Code::kCorrupt);
}

TEST(Arena, AnOldReleaseDoesNotFreeANewUnit) {
  Ends ends(Pool(64, 1));
  const ArenaRange first = ends.Put("first");
  auto stale = ends.reader->Claim(first.unit).value();
  auto again = ends.reader->Claim(first.unit).value();  // One claim too many.
  again.reset();
  const ArenaRange second = ends.Put("second");
  const Buffer held = ends.Get(second);
  stale.reset();
  EXPECT_EQ(ends.writer->Begin(0).code(), Code::kTimeout);
  EXPECT_EQ(ends.reader->Claim(first.unit).status().code(), Code::kCorrupt);
}

// A pool of one segment, whose unit each of three consumers must release.
struct Shared {
  Shared()
      : ends([] {
          ArenaOptions options = Pool(64, 1);
          options.consumers = 3;
          return options;
        }()) {
    for (uint32_t i = 0; i < 3; ++i) {
      readers[i] = std::move(ends.arena->OpenReader(i)).value();
    }
  }
  UnitRef Put(Audience audience = kEveryone) {
    EXPECT_TRUE(ends.writer->Begin(0).ok());
    EXPECT_TRUE(ends.writer->Write(Bytes("shared"), 0).ok());
    return ends.writer->Commit(audience).value();
  }
  bool IsFree() {
    const bool began = ends.writer->Begin(0).ok();
    return began && ends.writer->Abort().ok();
  }
  Ends ends;
  std::unique_ptr<ArenaReader> readers[3];
};

TEST(Arena, UnitsForSeveralConsumersNeedAReleaseByEach) {
  Shared shared;
  const UnitRef unit = shared.Put();
  shared.readers[0]->Claim(unit).value().reset();
  shared.readers[0]->Claim(unit).value().reset();
  shared.readers[2]->Claim(unit).value().reset();
  EXPECT_FALSE(shared.IsFree());
  shared.readers[1]->Claim(unit).value().reset();
  EXPECT_TRUE(shared.IsFree());
}

TEST(Arena, UnitsNeedNoReleaseByWhomTheyWereNotMeantFor) {
  Shared shared;
  const UnitRef unit = shared.Put(0b101);
  shared.readers[0]->Claim(unit).value().reset();
  EXPECT_FALSE(shared.IsFree());
  shared.ends.writer->Unsend(unit, 0b100);
  EXPECT_TRUE(shared.IsFree());
}

TEST(Arena, ForgottenConsumersOweNothing) {
  Shared shared;
  const UnitRef unit = shared.Put();
  shared.ends.writer->Forget(1);
  shared.readers[0]->Claim(unit).value().reset();
  EXPECT_FALSE(shared.IsFree());
  shared.readers[2]->Claim(unit).value().reset();
  EXPECT_TRUE(shared.IsFree());
  // A late release does not free a newer unit.
  const UnitRef newer = shared.Put();
  EXPECT_FALSE(shared.readers[1]->Claim(unit).ok());
  shared.readers[1]->Claim(newer).value().reset();
  EXPECT_FALSE(shared.IsFree());
}

TEST(Arena, ConsumersHaveNumbers) {
  Shared shared;
  EXPECT_EQ(shared.ends.arena->OpenReader(3).status().code(),
            Code::kInvalidArgument);
  ArenaOptions options = Pool(64, 1);
  for (const uint32_t consumers : {0u, 65u}) {
    options.consumers = consumers;
    EXPECT_EQ(Arena::Create(options).status().code(), Code::kInvalidArgument);
  }
}

TEST(Arena, LoansLiveUntilDroppedAndReleased) {
  Ends ends(Variable(64, 4));
  const ArenaRange loan = ends.writer->Lend(64, 0).value();
  const auto memory = ends.writer->At(loan);
  std::memset(memory.data(), 'L', memory.size());
  const ArenaRange part = ends.writer->FindLoan(memory.subspan(8, 16));
  EXPECT_EQ(part.unit, loan.unit);
  EXPECT_EQ(part.offset, loan.offset + 8);
  ASSERT_TRUE(ends.writer->Send(loan.unit).ok());
  Buffer seen = ends.Get(part);
  EXPECT_EQ(Text(seen), std::string(16, 'L'));
  seen = Buffer();
  EXPECT_EQ(ends.writer->Lend(64, 0).status().code(), Code::kTimeout);
  ends.writer->DropLoan(loan.unit);
  EXPECT_TRUE(ends.writer->Lend(64, 0).ok());
}

TEST(Arena, TellsWhetherAReleaseCanMakeRoom) {
  Ends ends(Variable(256, 4));
  EXPECT_TRUE(ends.writer->LendsAll());
  const ArenaRange loan = ends.writer->Lend(64, 0).value();
  ASSERT_TRUE(ends.writer->Send(loan.unit).ok());
  EXPECT_TRUE(ends.writer->LendsAll());
  (void)ends.Put("x");
  EXPECT_FALSE(ends.writer->LendsAll());
}

TEST(Arena, UnsentLoansAreFreedWhenDropped) {
  Ends ends(Variable(64, 1));
  for (int i = 0; i < 5; ++i) {
    const ArenaRange loan = ends.writer->Lend(64, 0).value();
    ends.writer->DropLoan(loan.unit);
  }
  EXPECT_EQ(ends.writer->FindLoan(Bytes("elsewhere")).unit.generation, 0u);
}

TEST(Arena, UnitsAreFoundInTheOrderOfCommits) {
  Ends ends(Variable(4096, 8));
  for (int i = 0; i < 20; ++i) {
    const ArenaRange range = ends.Put("x");
    const UnitRef next = ends.reader->Next().value();
    EXPECT_EQ(next, range.unit);
    ends.reader->Claim(next).value().reset();
  }
  EXPECT_EQ(ends.reader->Next().status().code(), Code::kUnavailable);
}

TEST(Arena, ManyThreadsFindEachUnitOnce) {
  constexpr uint32_t kUnits = 100'000;
  constexpr size_t kThreads = 4;
  Ends ends(Variable(uint64_t{64} * kUnits, kUnits));
  for (uint32_t i = 0; i < kUnits; ++i) ends.Put("x");
  std::vector<std::vector<uint32_t>> found(kThreads);
  std::atomic<size_t> ready = 0;
  std::vector<std::thread> consumers;
  for (auto& slots : found) {
    consumers.emplace_back([&] {
      ++ready;
      while (ready < kThreads) std::this_thread::yield();
      for (auto next = ends.reader->Next(); next.ok();
           next = ends.reader->Next()) {
        slots.push_back(next->slot);
      }
    });
  }
  for (auto& thread : consumers) thread.join();
  std::vector<uint32_t> all;
  for (const auto& slots : found) {
    all.insert(all.end(), slots.begin(), slots.end());
  }
  std::ranges::sort(all);
  EXPECT_EQ(all.size(), kUnits);
  EXPECT_EQ(std::ranges::adjacent_find(all), all.end());
}

TEST(Arena, AttachesByDescriptorSentOverASocket) {
  Ends ends(Variable(4096));
  const ArenaRange range = ends.Put("over there");
  auto sockets = arena::MakeSocketPair().value();
  ASSERT_TRUE(arena::SendFd(sockets.first.get(), ends.arena->fd(), 7).ok());
  auto received = arena::ReceiveFd(sockets.second.get(), 1000).value();
  EXPECT_EQ(received.tag, 7u);
  const auto other = Arena::Attach(received.fd.Release()).value();
  const auto reader = std::move(other->OpenReader()).value();
  auto claim = reader->Claim(range.unit).value();
  EXPECT_EQ(Text(reader->View(claim, range.offset, range.bytes).value()),
            "over there");
}

TEST(Arena, ReceivingDescriptorsFails) {
  auto sockets = arena::MakeSocketPair().value();
  EXPECT_EQ(arena::ReceiveFd(sockets.second.get(), 0).status().code(),
            Code::kTimeout);
  ASSERT_EQ(::write(sockets.first.get(), "12345678", 8), 8);
  EXPECT_EQ(arena::ReceiveFd(sockets.second.get(), 1000).status().code(),
            Code::kCorrupt);
  sockets.first = UniqueFd();
  EXPECT_EQ(arena::ReceiveFd(sockets.second.get(), 1000).status().code(),
            Code::kUnavailable);
}

TEST(Arena, AChildOfForkDoesNotReleaseWhatItsParentHolds) {
  Ends ends(Pool(64, 1));
  Buffer held = ends.Get(ends.Put("parent's"));
  const pid_t child = ::fork();
  if (child == 0) {
    held = Buffer();
    ::_exit(ends.arena->stats().released_bytes == 0 ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(ends.writer->Begin(0).code(), Code::kTimeout);
}

TEST(Arena, RefusesDescriptorsThatAreNoArena) {
  const auto attach = [](const std::string& content, bool seal) {
    const int fd = ::memfd_create("test", MFD_ALLOW_SEALING);
    EXPECT_EQ(::write(fd, content.data(), content.size()),
              static_cast<ssize_t>(content.size()));
    if (seal) ::fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK);
    return Arena::Attach(fd).status().code();
  };
  EXPECT_EQ(attach("", true), Code::kTruncated);
  EXPECT_EQ(attach(std::string(8192, '\0'), true), Code::kCorrupt);

  const auto real = Arena::Create(Variable(4096)).value();
  std::string header(64, '\0');
  ASSERT_EQ(::pread(real->fd(), header.data(), 64, 0), 64);
  EXPECT_EQ(attach(header, true), Code::kCorrupt);  // Too small for the arena.
  std::string whole = header;
  whole.resize(static_cast<size_t>(::lseek(real->fd(), 0, SEEK_END)));
  EXPECT_EQ(attach(whole, false), Code::kCorrupt);  // The file could shrink.
  EXPECT_EQ(attach(whole, true), Code::kOk);
  for (size_t byte = 0; byte < 60; ++byte) {
    for (const int bit : {0, 3, 7}) {
      std::string bad = whole;
      bad[byte] = static_cast<char>(bad[byte] ^ (1 << bit));
      // Must not crash. If the header is accepted, its sizes agree.
      (void)attach(bad, true);
    }
  }
}

TEST(Arena, SurvivesAPeerThatWritesRandomControlWords) {
  Ends ends(Variable(1 << 16, 16));
  // The peer's own mapping of everything before the payload.
  void* mapped = ::mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_SHARED,
                        ends.arena->fd(), 0);
  ASSERT_NE(mapped, MAP_FAILED);
  auto* words = static_cast<std::atomic<uint32_t>*>(mapped);
  std::minstd_rand seed(3);
  const auto random = [&] { return static_cast<uint32_t>(seed()); };
  for (int round = 0; round < 20'000; ++round) {
    // Skip the shutdown word, which any peer may set.
    const size_t word = random() % 2048;
    if (word != 128 / 4) words[word].store(random());
    if (ends.writer->Begin(0).ok()) {
      const std::string text(random() % 9000, 'x');
      const auto range = ends.writer->Write(Bytes(text), 0);
      if (range.ok()) {
        EXPECT_LE(range->offset + range->bytes, uint64_t{1} << 16);
        (void)ends.writer->Commit();
      } else {
        (void)ends.writer->Abort();
      }
    }
    const auto next = ends.reader->Next();
    const UnitRef unit = next.ok() ? *next : UnitRef{random(), random()};
    const auto claim = ends.reader->Claim(unit);
    if (!claim.ok()) continue;
    const auto view = ends.reader->View(*claim, random() % (1 << 17), 100);
    if (view.ok()) {
      volatile std::byte last = view->data()[99];
      (void)last;
    }
  }
  ::munmap(mapped, 8192);
}

TEST(Arena, RejectsSizesThatMakeNoSense) {
  EXPECT_EQ(Arena::Create(Variable(0)).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(Arena::Create(Variable(64, 0)).status().code(),
            Code::kInvalidArgument);
  EXPECT_EQ(Arena::Create(Variable(UINT64_MAX)).status().code(), Code::kLimit);
  EXPECT_EQ(Arena::Create(Pool(UINT64_MAX / 2, 4)).status().code(),
            Code::kLimit);
}

TEST(Arena, IsListedWithItsHolders) {
  Ends ends(Variable(1 << 20));
  const ArenaRange range = ends.Put(std::string(1000, 'x'));
  const auto arenas = ListArenas().value();
  const auto self = static_cast<uint32_t>(::getpid());
  const auto mine = std::ranges::find_if(arenas, [&](const auto& holding) {
    return holding.stats.creator == self && holding.stats.used == 1024;
  });
  ASSERT_NE(mine, arenas.end());
  EXPECT_FALSE(mine->orphaned);
  EXPECT_THAT(mine->holders, testing::Contains(self));
  EXPECT_EQ(mine->stats.high_water, 1024u);
  ends.reader->Claim(range.unit).value().reset();
}

TEST(Arena, ManyThreadsReleaseWhatOneWrites) {
  Ends ends(Variable(1 << 16, 32));
  constexpr int kUnits = 20'000;
  std::vector<std::atomic<uint64_t>> inbox(4);
  std::vector<std::thread> consumers;
  std::atomic<bool> ok = true;
  for (size_t i = 0; i < inbox.size(); ++i) {
    consumers.emplace_back([&, i] {
      while (true) {
        const uint64_t mail = inbox[i].exchange(0);
        if (mail == UINT64_MAX) return;
        if (mail == 0) {
          std::this_thread::yield();
          continue;
        }
        const UnitRef unit = {static_cast<uint32_t>(mail & 0xffff),
                              static_cast<uint32_t>(mail >> 16 & 0xffffffff)};
        auto claim = ends.reader->Claim(unit);
        if (!claim.ok()) ok = false;
      }
    });
  }
  for (int n = 0; n < kUnits; ++n) {
    const ArenaRange range = ends.Put(
        std::string(static_cast<size_t>(n % 3000), 'x'), test::kSecond);
    const uint64_t mail =
        uint64_t{range.unit.generation} << 16 | range.unit.slot;
    uint64_t empty = 0;
    while (!inbox[n % 4].compare_exchange_weak(empty, mail)) {
      empty = 0;
      std::this_thread::yield();
    }
  }
  for (auto& box : inbox) {
    uint64_t empty = 0;
    while (!box.compare_exchange_weak(empty, UINT64_MAX)) {
      empty = 0;
      std::this_thread::yield();
    }
  }
  for (auto& thread : consumers) thread.join();
  EXPECT_TRUE(ok);
}

}  // namespace
}  // namespace haulway
