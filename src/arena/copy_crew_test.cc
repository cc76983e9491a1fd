#include "arena/copy_crew.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <thread>
#include <vector>

#include "testing/shorthands.h"

namespace haulway::arena {
namespace {

std::vector<std::byte> Pattern(size_t bytes, uint32_t seed) {
  std::vector<std::byte> pattern(bytes);
  for (std::byte& byte : pattern) {
    seed = seed * 1664525 + 1013904223;
    byte = static_cast<std::byte>(seed >> 24);
  }
  return pattern;
}

TEST(CopyCrewTest, CopiesEveryByteOnAnyNumberOfThreads) {
  for (const int threads : {1, 2, 3, 40}) {
    CopyCrew crew;
    for (const size_t bytes :
         {size_t{0}, size_t{1}, test::kMib, 2 * test::kMib - 1, 2 * test::kMib,
          2 * test::kMib + 1, 5 * test::kMib + 12345, 16 * test::kMib}) {
      const std::vector<std::byte> from = Pattern(bytes, 7);
      std::vector<std::byte> to(bytes + 1);
      crew.Copy(std::span(to).first(bytes), from, threads);
      EXPECT_TRUE(std::equal(from.begin(), from.end(), to.begin()))
          << bytes << " bytes, " << threads << " threads";
      EXPECT_EQ(to.back(), std::byte{0});
    }
  }
}

TEST(CopyCrewTest, CopiesPastTheCachesToo) {
  CopyCrew crew;
  for (const size_t bytes :
       {size_t{100}, 2 * test::kMib + 1, 9 * test::kMib + 77}) {
    const std::vector<std::byte> from = Pattern(bytes, 5);
    for (int turn = 0; turn < 4; ++turn) {  // Alone and with helpers.
      std::vector<std::byte> to(bytes);
      crew.Copy(to, from, 2, CopyWay::kStreamed);
      EXPECT_EQ(to, from);
    }
  }
}

TEST(CopyCrewTest, KeepsNothingOfTheCopyBefore) {
  CopyCrew crew;
  const std::vector<std::byte> first = Pattern(4 * test::kMib, 1);
  const std::vector<std::byte> second = Pattern(3 * test::kMib, 2);
  std::vector<std::byte> to(4 * test::kMib);
  for (int i = 0; i < 50; ++i) {
    const std::vector<std::byte>& from = i % 2 == 0 ? first : second;
    crew.Copy(std::span(to).first(from.size()), from, 2);
    ASSERT_TRUE(std::equal(from.begin(), from.end(), to.begin()));
  }
}

TEST(CopyCrewTest, SeveralCallersAtOnce) {
  CopyCrew crew;
  std::atomic<int> wrong{0};
  std::vector<std::thread> callers;
  for (uint32_t i = 0; i < 4; ++i) {
    callers.emplace_back([&crew, &wrong, i] {
      const std::vector<std::byte> from = Pattern(3 * test::kMib, i);
      std::vector<std::byte> to(from.size());
      for (int round = 0; round < 10; ++round) {
        std::fill(to.begin(), to.end(), std::byte{0});
        crew.Copy(to, from, 3);
        if (to != from) ++wrong;
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(wrong, 0);
}

TEST(CopyCrewTest, AForkedChildCopiesAlone) {
  CopyCrew crew;
  const std::vector<std::byte> from = Pattern(4 * test::kMib, 3);
  std::vector<std::byte> to(from.size());
  crew.Copy(to, from, 2);
  const pid_t child = ::fork();
  if (child == 0) {
    std::fill(to.begin(), to.end(), std::byte{0});
    crew.Copy(to, from, 2);
    ::_exit(to == from ? 0 : 1);
  }
  int status = 1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace haulway::arena
