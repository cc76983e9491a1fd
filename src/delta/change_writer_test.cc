#include "delta/change_writer.h"

#include <gtest/gtest.h>
#include <zstd.h>

#include <cstddef>
#include <random>
#include <vector>

#include "delta/change.h"

namespace haulway::delta {
namespace {

using Bytes = std::vector<std::byte>;

// Changes a share of the bytes, in runs.
Bytes Altered(const Bytes& before, double share, size_t longest,
              std::mt19937* random) {
  Bytes after = before;
  std::uniform_real_distribution<double> chance;
  for (size_t i = 0; i < after.size(); ++i) {
    if (chance(*random) >= share) continue;
    for (size_t run = 1 + (*random)() % longest; run > 0 && i < after.size();
         --run, ++i) {
      after[i] ^= static_cast<std::byte>(1 + (*random)() % 255);
    }
  }
  return after;
}

void Check(Change change, const Bytes& before, const Bytes& after) {
  const auto frame = MakeChange(change, before, after);
  ASSERT_TRUE(frame.ok()) << frame.status().message();
  Bytes bytes = before;
  const Status status = ApplyChange(change, *frame, bytes, nullptr);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(bytes, after);
  // Receivers allocate by the size that the frame states.
  EXPECT_NE(ZSTD_getFrameContentSize(frame->data(), frame->size()),
            ZSTD_CONTENTSIZE_UNKNOWN);
  EXPECT_EQ(ZSTD_findFrameCompressedSize(frame->data(), frame->size()),
            frame->size());
}

TEST(ChangeWriter, MakesFramesThatGiveTheNewBytes) {
  std::mt19937 random(1);
  for (int i = 0; i < 160; ++i) {
    const size_t size = 1 + random() % (i % 10 == 0 ? 200'000 : 3000);
    const double share = std::vector<double>{0, 0.001, 0.02, 0.2, 1}[i % 5];
    Bytes before(size);
    for (std::byte& b : before) b = static_cast<std::byte>(random());
    Bytes after = Altered(before, share, 1 + random() % 9, &random);
    if (i % 3 == 0) after.back() ^= std::byte{1};  // It ends in literals.
    if (i % 4 == 0) after.front() ^= std::byte{1};
    Check(Change::kXor, before, after);
    if (i % 4 == 0) Check(Change::kOverwrite, before, after);
  }
}

TEST(ChangeWriter, MakesSmallFrames) {
  std::mt19937 random(2);
  Bytes before(2 << 20);
  for (std::byte& b : before) b = static_cast<std::byte>(random());
  Bytes after = before;
  std::uniform_real_distribution<double> chance;
  // The lowest bit of 2 % of the elements of two bytes.
  for (size_t i = 0; i < after.size(); i += 2) {
    if (chance(random) < 0.02) after[i] ^= std::byte{1};
  }
  const auto frame = MakeChange(Change::kXor, before, after);
  ASSERT_TRUE(frame.ok());
  EXPECT_GT(before.size(), 60 * frame->size());
}

TEST(ChangeWriter, TakesRunsOfAnyLength) {
  for (const size_t zeros : {4, 5, 6, 131071, 131072, 131073, 400'000}) {
    Bytes before(zeros + 2);
    Bytes after = before;
    after.front() = after.back() = std::byte{7};
    Check(Change::kXor, before, after);
    after.front() = std::byte{0};
    Check(Change::kXor, before, after);
  }
}

}  // namespace
}  // namespace haulway::delta
