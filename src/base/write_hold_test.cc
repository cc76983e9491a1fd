#include "base/write_hold.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <thread>
#include <vector>

#include "base/page_bytes.h"

namespace haulway {
namespace {

using std::chrono_literals::operator""ms;

const size_t kPage = PageBytes();

std::span<std::byte> Map(size_t bytes, int protection) {
  void* const address =
      ::mmap(nullptr, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return {static_cast<std::byte*>(address), bytes};
}

// Replaces the memory with new memory of the same content.
void MoveCopyOver(std::span<std::byte> memory) {
  const auto copy = Map(memory.size(), PROT_READ | PROT_WRITE);
  auto* const from = reinterpret_cast<std::atomic<uint64_t>*>(memory.data());
  auto* const to = reinterpret_cast<std::atomic<uint64_t>*>(copy.data());
  for (size_t i = 0; i < memory.size() / 8; ++i) to[i] = from[i].load();
  ASSERT_NE(::mremap(copy.data(), copy.size(), copy.size(),
                     MREMAP_MAYMOVE | MREMAP_FIXED, memory.data()),
            MAP_FAILED);
}

TEST(WriteHold, NoWriteIsLostWhileMemoryIsReplaced) {
  constexpr size_t kPages = 8;
  constexpr int kThreads = 3;
  const auto memory = Map(kPages * kPage, PROT_READ | PROT_WRITE);
  auto* const words = reinterpret_cast<std::atomic<uint64_t>*>(memory.data());
  std::atomic<bool> stop{false};
  std::vector<uint64_t> counts(kThreads);
  std::atomic<int> started{0};
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        ++started;
        // Each thread increments its own words, like `v += 1`.
        for (; !stop; ++counts[t]) {
          for (size_t i = t; i < memory.size() / 8; i += 61) {
            words[i].store(words[i].load(std::memory_order_relaxed) + 1,
                           std::memory_order_relaxed);
          }
        }
      });
    }
    while (started < kThreads) std::this_thread::yield();
    for (int round = 0; round < 200; ++round) {
      for (size_t page = 0; page < kPages; ++page) {
        const auto part = memory.subspan(page * kPage, kPage);
        const WriteHold hold(part);
        ASSERT_TRUE(hold.status().ok()) << hold.status().message();
        MoveCopyOver(part);
      }
    }
    stop = true;
  }
  for (int t = 0; t < kThreads; ++t) {
    for (size_t i = t; i < memory.size() / 8; i += 61) {
      ASSERT_EQ(words[i], counts[t]) << i;
    }
  }
  ::munmap(memory.data(), memory.size());
}

TEST(WriteHold, AWriterWaitsForTheEnd) {
  const auto memory = Map(kPage, PROT_READ | PROT_WRITE);
  std::atomic<bool> written{false};
  std::jthread writer;
  {
    WriteHold hold(memory);
    ASSERT_TRUE(hold.status().ok());
    writer = std::jthread([&] {
      // With another order, ThreadSanitizer would hold a lock during the store,
      // and the load below would wait for that lock.
      std::atomic_ref(memory[5]).store(std::byte{1}, std::memory_order_relaxed);
      written = true;
    });
    std::this_thread::sleep_for(20ms);
    EXPECT_FALSE(written);
    EXPECT_EQ(std::atomic_ref(memory[5]).load(std::memory_order_relaxed),
              std::byte{0});
    hold.Release();
  }
  writer.join();
  EXPECT_EQ(memory[5], std::byte{1});
  ::munmap(memory.data(), memory.size());
}

void HoldOnce() {
  const auto memory = Map(kPage, PROT_READ | PROT_WRITE);
  WriteHold hold(memory);
  hold.Release();
}

// Runs HoldOnce() without an earlier handler.
void HoldOnceByDefault() {
  ::signal(SIGSEGV, SIG_DFL);
  HoldOnce();
}

void WriteToReadOnly() {
  *reinterpret_cast<volatile std::byte*>(Map(kPage, PROT_READ).data()) =
      std::byte{1};
}

void ExitWith7(int /*signal*/) { std::_Exit(7); }

TEST(WriteHoldDeathTest, MistakesOfTheProgramAreItsOwn) {
  EXPECT_EXIT(
      {
        HoldOnceByDefault();
        WriteToReadOnly();
      },
      testing::KilledBySignal(SIGSEGV), "");
  EXPECT_EXIT(
      {
        HoldOnceByDefault();
        *reinterpret_cast<volatile int*>(uintptr_t{16}) = 1;
      },
      testing::KilledBySignal(SIGSEGV), "");
  EXPECT_EXIT(
      {
        HoldOnceByDefault();
        ::raise(SIGSEGV);
      },
      testing::KilledBySignal(SIGSEGV), "");
}

TEST(WriteHoldDeathTest, TheEarlierHandlerTakesOver) {
  EXPECT_EXIT(
      {
        ::signal(SIGSEGV, ExitWith7);
        HoldOnce();
        WriteToReadOnly();
      },
      testing::ExitedWithCode(7), "");
}

// A handler like that of Python's faulthandler: handles one signal and restores
// the previous handler.
struct sigaction put_back;
void PutBack(int signal) { ::sigaction(signal, &put_back, nullptr); }

TEST(WriteHoldDeathTest, HandlersThatPutEachOtherBackComeToAnEnd) {
  EXPECT_EXIT(
      {
        HoldOnceByDefault();
        struct sigaction action {};
        action.sa_handler = PutBack;
        ::sigaction(SIGSEGV, &action, &put_back);
        HoldOnce();
        WriteToReadOnly();
      },
      testing::KilledBySignal(SIGSEGV), "");
}

}  // namespace
}  // namespace haulway
