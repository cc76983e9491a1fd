#include "load/memory_pool.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <optional>
#include <thread>
#include <vector>

#include "base/page_bytes.h"

namespace haulway {
namespace {

constexpr uint64_t kMany = 64 * kMiB;

uint64_t PresentBytes(std::span<const std::byte> memory) {
  std::vector<unsigned char> pages((memory.size() + PageBytes() - 1) /
                                   PageBytes());
  void* const begin = const_cast<std::byte*>(memory.data());
  EXPECT_EQ(::mincore(begin, memory.size(), pages.data()), 0);
  return PageBytes() * static_cast<uint64_t>(std::ranges::count_if(
                           pages, [](unsigned char page) { return page & 1; }));
}

std::shared_ptr<PooledMemory> Filled(const MemoryPool& pool, uint64_t bytes) {
  auto memory = AllocateBuffer(bytes);
  EXPECT_TRUE(memory.ok());
  std::memset(memory->mutable_bytes().data(), 7, bytes);
  return PooledMemory::Follow(pool, *std::move(memory));
}

void WaitUntilEmpty(const MemoryPool& pool) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (pool.kept_bytes() != 0) {
    ASSERT_LT(std::chrono::steady_clock::now(), until);
    std::this_thread::yield();
  }
}

MemoryPoolOptions For(uint64_t most, std::chrono::milliseconds keep) {
  return {.most_bytes = most, .keep = keep};
}

TEST(MemoryPool, GivesWhatWasFreedToTheNext) {
  const MemoryPool pool(For(kMany, std::chrono::minutes(10)));
  EXPECT_EQ(PooledMemory::Take(pool, kMany), nullptr);
  auto first = Filled(pool, 16 * kMiB);
  const std::byte* const place = first->buffer().data();
  EXPECT_EQ(pool.kept_bytes(), 0u);
  first.reset();
  EXPECT_EQ(pool.kept_bytes(), 16 * kMiB);

  EXPECT_EQ(PooledMemory::Take(pool, 16 * kMiB + 1), nullptr);
  EXPECT_EQ(PooledMemory::Take(pool, 8 * kMiB - 1), nullptr);  // Too long.
  auto second = PooledMemory::Take(pool, 12 * kMiB);
  ASSERT_NE(second, nullptr);
  EXPECT_EQ(second->buffer().data(), place);
  EXPECT_EQ(second->buffer().bytes()[12 * kMiB - 1], std::byte{7});
  EXPECT_EQ(PresentBytes(second->buffer().bytes()), 12 * kMiB);
  EXPECT_EQ(pool.kept_bytes(), 0u);
  EXPECT_EQ(PooledMemory::Take(pool, 12 * kMiB), nullptr);
}

TEST(MemoryPool, PrefersTheSmallestThatSuffices) {
  const MemoryPool pool(For(kMany, std::chrono::minutes(10)));
  {
    const auto large = Filled(pool, 20 * kMiB);
    const auto small = Filled(pool, 10 * kMiB);
  }
  EXPECT_EQ(PooledMemory::Take(pool, 10 * kMiB)->buffer().size(), 10 * kMiB);
}

TEST(MemoryPool, BuffersKeepTheirMemory) {
  std::optional<MemoryPool> pool(For(kMany, std::chrono::minutes(10)));
  auto memory = Filled(*pool, 16 * kMiB);
  Buffer whole = memory->buffer();
  Buffer part = memory->Slice(0, 100);
  memory.reset();
  whole = {};
  EXPECT_EQ(pool->kept_bytes(), 0u);
  pool.reset();
  EXPECT_EQ(part.bytes()[99], std::byte{7});
}

TEST(MemoryPool, KeepsPartsUntilTheTimeIsUp) {
  const MemoryPool pool(For(kMany, std::chrono::milliseconds(50)));
  auto memory = Filled(pool, 16 * kMiB);
  const Buffer kept = memory->Slice(0, 4 * kMiB);
  Buffer freed = memory->Slice(4 * kMiB, 4 * kMiB + 1);
  const std::span<const std::byte> place = freed.bytes();
  memory.reset();
  freed = {};
  WaitUntilEmpty(pool);
  EXPECT_EQ(PresentBytes(place), PageBytes());  // The page of the byte in use.
  EXPECT_EQ(PresentBytes(kept.bytes()), 4 * kMiB);
  EXPECT_EQ(kept.bytes()[4 * kMiB - 1], std::byte{7});
}

TEST(MemoryPool, PartsCountUntilTheWholeDoes) {
  const MemoryPool pool(For(kMany, std::chrono::minutes(10)));
  auto memory = Filled(pool, 16 * kMiB);
  Buffer first = memory->Slice(0, 4 * kMiB);
  Buffer rest = memory->Slice(4 * kMiB, 12 * kMiB);
  memory.reset();
  first = {};
  EXPECT_EQ(pool.kept_bytes(), 4 * kMiB);
  rest = {};
  EXPECT_EQ(pool.kept_bytes(), 16 * kMiB);
  const auto next = PooledMemory::Take(pool, 16 * kMiB);
  ASSERT_NE(next, nullptr);
  EXPECT_EQ(PresentBytes(next->buffer().bytes()), 16 * kMiB);
}

TEST(MemoryPool, GivesEverythingBackInTime) {
  const MemoryPool pool(For(kMany, std::chrono::milliseconds(1)));
  for (int i = 0; i < 20; ++i) {
    Filled(pool, 8 * kMiB).reset();
    if (i % 3 == 0) WaitUntilEmpty(pool);
  }
  WaitUntilEmpty(pool);
  EXPECT_EQ(PooledMemory::Take(pool, 8 * kMiB), nullptr);
}

TEST(MemoryPool, KeepsNoMoreThanItMay) {
  const MemoryPool pool(For(24 * kMiB, std::chrono::minutes(10)));
  auto too_large = Filled(pool, 25 * kMiB);
  Buffer part = too_large->Slice(0, 20 * kMiB);
  const std::span<const std::byte> place = part.bytes();
  part = {};
  EXPECT_EQ(PresentBytes(place), 0u);  // Freed at once.
  too_large.reset();
  EXPECT_EQ(pool.kept_bytes(), 0u);

  auto first = Filled(pool, 10 * kMiB);
  auto second = Filled(pool, 16 * kMiB);
  first.reset();
  second.reset();  // Displaces the first.
  EXPECT_EQ(pool.kept_bytes(), 16 * kMiB);
}

TEST(MemoryPool, ClearsWhatIsKept) {
  const MemoryPool pool(For(kMany, std::chrono::minutes(10)));
  auto memory = Filled(pool, 16 * kMiB);
  Buffer part = memory->Slice(0, 8 * kMiB);
  const std::span<const std::byte> place = part.bytes();
  part = {};
  EXPECT_EQ(PresentBytes(place), 8 * kMiB);
  pool.Clear();
  EXPECT_EQ(pool.kept_bytes(), 0u);
  EXPECT_EQ(PresentBytes(place), 0u);
  memory.reset();
  EXPECT_EQ(pool.kept_bytes(), 16 * kMiB);
  pool.Clear();
  EXPECT_EQ(pool.kept_bytes(), 0u);
}

TEST(MemoryPool, ForkedProcessesKeepNothing) {
  const MemoryPool pool(For(kMany, std::chrono::minutes(10)));
  Filled(pool, 8 * kMiB).reset();  // Starts the thread.
  auto held = Filled(pool, 16 * kMiB);
  const pid_t child = ::fork();
  if (child == 0) {
    held.reset();
    const bool nothing =
        pool.kept_bytes() == 0 && PooledMemory::Take(pool, 8 * kMiB) == nullptr;
    pool.Clear();
    ::_exit(nothing ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(pool.kept_bytes(), 8 * kMiB);
}

TEST(MemoryPool, ServesManyThreads) {
  const MemoryPool pool(For(kMany, std::chrono::milliseconds(1)));
  std::vector<std::thread> threads;
  for (int t = 1; t <= 4; ++t) {
    threads.emplace_back([&pool, t] {
      const auto mark = static_cast<std::byte>(t);
      for (int i = 0; i < 12; ++i) {
        auto memory = PooledMemory::Take(pool, 8 * kMiB);
        if (memory == nullptr) memory = Filled(pool, 8 * kMiB);
        Buffer first = memory->Slice(0, 4 * kMiB);
        Buffer second = memory->Slice(4 * kMiB, 4 * kMiB);
        memory.reset();
        const auto written = second.mutable_bytes();
        std::memset(written.data(), t, written.size());
        first = {};
        if (i % 7 == 0) pool.Clear();
        for (size_t at = 0; at < written.size(); at += 4096) {
          ASSERT_EQ(written[at], mark);
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  pool.Clear();
  EXPECT_EQ(pool.kept_bytes(), 0u);
}

}  // namespace
}  // namespace haulway
