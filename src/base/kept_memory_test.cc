#include "base/kept_memory.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <thread>
#include <vector>

namespace haulway {
namespace {

TEST(KeptMemory, TheNextTakesWhatTheLastLeft) {
  const KeptMemory memory(2);
  const std::byte* first = nullptr;
  {
    const Buffer taken = *memory.Take(1000);
    ASSERT_EQ(taken.size(), 1000u);
    taken.mutable_bytes()[999] = std::byte{7};
    first = taken.data();
  }
  {
    const Buffer again = *memory.Take(500);
    EXPECT_EQ(again.size(), 500u);
    EXPECT_EQ(again.data(), first);
    // It is in use, by a copy too.
    const Buffer copy = again.Slice(1, 1);
    EXPECT_NE(memory.Take(500)->data(), first);
  }
  EXPECT_NE(memory.Take(5000)->data(), first);
}

TEST(KeptMemory, OnlyTheLargestPiecesAreKept) {
  const KeptMemory memory(1);
  const std::byte* large = nullptr;
  {
    const Buffer one = *memory.Take(100'000);
    const Buffer other = *memory.Take(10);
    large = one.data();
  }
  EXPECT_EQ(memory.Take(10)->data(), large);
}

TEST(KeptMemory, WhatWasTakenOutlivesIt) {
  std::optional<KeptMemory> memory(std::in_place, 1);
  const Buffer taken = *memory->Take(8);
  memory.reset();
  taken.mutable_bytes()[7] = std::byte{1};
  EXPECT_EQ(taken.bytes()[7], std::byte{1});
}

TEST(KeptMemory, ThreadsNeverShareAPiece) {
  const KeptMemory memory(3);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&memory, t] {
      for (int i = 0; i < 2000; ++i) {
        const Buffer taken = *memory.Take(64);
        const auto bytes = taken.mutable_bytes();
        std::ranges::fill(bytes, static_cast<std::byte>(t));
        for (const std::byte byte : bytes) {
          ASSERT_EQ(byte, static_cast<std::byte>(t));
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace haulway
