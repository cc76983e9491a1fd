#include "delta/change_writer.h"

#include <gtest/gtest.h>
#include <zstd.h>

#include <cstddef>
#include <random>
#include <span>
#include <string>
#include <utility>
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
  if (before == after) {
    EXPECT_TRUE(frame->empty());
    return;
  }
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

// A ChangeWriter's frame, checksum, and answer.
struct Written {
  Bytes frame;
  std::string checksum;
  bool differs = false;
};

Written WriteChange(ChangeWriter* writer, const Bytes& before,
                    const Bytes& after) {
  Written written;
  Checksum checksum(ChecksumKind::kXxh3);
  const auto made = writer->Write(
      Change::kXor, before, after, &checksum,
      [&](std::span<const std::byte> bytes) {
        written.frame.insert(written.frame.end(), bytes.begin(), bytes.end());
        return Status();
      });
  EXPECT_TRUE(made.ok()) << made.status().message();
  written.differs = made.ok() && *made;
  written.checksum = checksum.Finish();
  return written;
}

std::string SumOf(const Bytes& bytes) {
  Checksum checksum(ChecksumKind::kXxh3);
  checksum.Update(bytes);
  return checksum.Finish();
}

// Returns pairs of tensors of several chunks, changed in some way.
std::vector<std::pair<Bytes, Bytes>> LongTensors() {
  std::mt19937 random(3);
  std::vector<std::pair<Bytes, Bytes>> tensors;
  for (const size_t size : {262'144u, 262'145u, 900'007u}) {
    Bytes before(size);
    for (std::byte& b : before) b = static_cast<std::byte>(random());
    for (const double share : {0.0005, 0.02, 0.5, 1.0}) {
      tensors.emplace_back(before, Altered(before, share, 3, &random));
    }
    // Only in the last chunk; only in the first one; dense after a sparse one,
    // and before one.
    for (const auto& [begin, end] : std::vector<std::pair<size_t, size_t>>{
             {size - 1, size}, {7, 9}, {size / 2, size}, {0, size / 2}}) {
      Bytes after = before;
      after[size / 3] ^= std::byte{1};
      for (size_t i = begin; i < end; ++i) {
        after[i] ^= static_cast<std::byte>(1 + random() % 255);
      }
      tensors.emplace_back(before, std::move(after));
    }
  }
  return tensors;
}

TEST(ChangeWriter, WritesTensorsOfSeveralChunks) {
  ChangeWriter writer = std::move(ChangeWriter::Make()).value();
  for (const auto& [before, after] : LongTensors()) {
    Check(Change::kXor, before, after);
    const Written written = WriteChange(&writer, before, after);
    EXPECT_TRUE(written.differs);
    EXPECT_EQ(written.checksum, SumOf(after));
    Bytes bytes = before;
    ASSERT_TRUE(ApplyChange(Change::kXor, written.frame, bytes, nullptr).ok());
    EXPECT_EQ(bytes, after);
    // Equal tensors have no frame, and the writer can be used again.
    EXPECT_FALSE(WriteChange(&writer, after, after).differs);
  }
}

TEST(ChangeWriter, ReplacesATensorAndTakesItBack) {
  ChangeWriter writer = std::move(ChangeWriter::Make()).value();
  for (const auto& [before, after] : LongTensors()) {
    Bytes frame;
    Bytes tensor = before;
    uint64_t done = 0;
    Checksum checksum(ChecksumKind::kXxh3);
    const auto keep = [&](std::span<const std::byte> bytes) {
      frame.insert(frame.end(), bytes.begin(), bytes.end());
      return Status();
    };
    const auto made = writer.Replace(tensor, after, &checksum, keep, &done);
    ASSERT_TRUE(made.ok() && *made);
    EXPECT_EQ(tensor, after);
    EXPECT_EQ(checksum.Finish(), SumOf(after));
    EXPECT_EQ(frame, WriteChange(&writer, before, after).frame);
    ASSERT_TRUE(Undo(frame, tensor, done).ok());
    EXPECT_EQ(tensor, before);
  }
}

TEST(ChangeWriter, TakesBackATensorWhoseFrameWasNotWritten) {
  ChangeWriter writer = std::move(ChangeWriter::Make()).value();
  size_t partly = 0;
  for (const auto& [before, after] : LongTensors()) {
    for (int most = 0; most < 5; ++most) {
      Bytes frame;
      Bytes tensor = before;
      uint64_t done = 0;
      int calls = 0;
      const auto made = writer.Replace(
          tensor, after, nullptr,
          [&](std::span<const std::byte> bytes) {
            if (calls++ == most) return Status(Code::kIoError, "full");
            frame.insert(frame.end(), bytes.begin(), bytes.end());
            return Status();
          },
          &done);
      EXPECT_EQ(made.ok(), calls <= most);
      if (!made.ok() && done > 0) ++partly;
      ASSERT_TRUE(Undo(frame, tensor, done).ok());
      EXPECT_EQ(tensor, before);
    }
  }
  EXPECT_GT(partly, 10u);
}

}  // namespace
}  // namespace haulway::delta
