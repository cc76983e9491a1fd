#include "delta/mask_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "delta/change_writer.h"
#include "delta/frame_reader.h"
#include "testing/zstd_frames.h"

namespace haulway::delta {
namespace {

using test::Compress;
using ::testing::HasSubstr;
using Bytes = std::vector<std::byte>;

// Combines a whole frame with `tensor`.
Status CombineAll(const Bytes& frame, Bytes* tensor) {
  HAULWAY_ASSIGN(MaskReader reader, MaskReader::Open(frame, tensor->size()));
  for (size_t at = 0; at < tensor->size();) {
    const auto rest = std::span(*tensor).subspan(at);
    HAULWAY_ASSIGN(const MaskReader::Step step,
                   reader.Combine(rest.first(
                       std::min(rest.size(), BlockDecoder::kMostBytes))));
    EXPECT_GT(step.bytes, 0u);
    at += step.bytes;
  }
  return reader.Finish();
}

// Content of several kinds: sparse, text-like, periodic, noise.
Bytes Content(size_t size, uint32_t seed) {
  std::mt19937 random(seed);
  Bytes content(size);
  const uint32_t kind = seed % 6;
  for (size_t i = 0; i < size; ++i) {
    uint32_t value = 0;
    switch (kind) {
      case 0:  // As the changes of a BF16 tensor.
        value = i % 2 == 0 && random() % 50 == 0 ? 1u << random() % 3 : 0;
        break;
      case 1:
        value = random();
        break;
      case 2:
        value = random() % 4 == 0 ? random() % 20 : 'e';
        break;
      case 3:
        value = static_cast<uint32_t>(i / (1 + seed % 7)) % 251;
        break;
      case 4:
        value = random() % 1000 == 0 ? random() : 0;
        break;
      default:
        value = i % 5000 < 2500 ? random() % 3 : 0;
    }
    content[i] = static_cast<std::byte>(value);
  }
  return content;
}

TEST(MaskReader, DecodesWhatLibzstdEncodes) {
  const size_t sizes[] = {1,       2,       7,       17,     100,
                          255,     256,     1000,    65'791, 65'792,
                          131'072, 131'073, 300'000, 800'000};
  uint32_t seed = 0;
  for (const size_t size : sizes) {
    for (int level = -3; level <= 22; level += 1) {
      if (level > 9 && size > 200'000 && level % 3 != 0) continue;
      const Bytes content = Content(size, ++seed);
      const Bytes before = Content(size, 1);
      const Bytes frame = Compress(
          content,
          {.level = level,
           .window_log = seed % 3 == 0 ? 10 + static_cast<int>(seed % 11) : 0,
           .has_size = seed % 4 != 0,
           .has_checksum = seed % 5 == 0});
      Bytes tensor = before;
      const Status status = CombineAll(frame, &tensor);
      ASSERT_TRUE(status.ok()) << status.message() << " size " << size
                               << " level " << level << " seed " << seed;
      for (size_t i = 0; i < size; ++i) {
        ASSERT_EQ(tensor[i], before[i] ^ content[i])
            << i << " size " << size << " level " << level << " seed " << seed;
      }
    }
  }
}

TEST(MaskReader, DecodesWhatWeWrite) {
  for (const size_t size : {5u, 4096u, 1'000'000u}) {
    const Bytes before = Content(size, 1);
    Bytes after = before;
    Bytes mask = Content(size, 6);
    mask[size / 2] = std::byte{1};  // Only what differs has a frame.
    for (size_t i = 0; i < size; ++i) after[i] ^= mask[i];
    const auto frame = MakeChange(Change::kXor, before, after);
    ASSERT_TRUE(frame.ok());
    Bytes tensor = before;
    const Status status = CombineAll(*frame, &tensor);
    ASSERT_TRUE(status.ok()) << status.message() << " size " << size;
    EXPECT_EQ(tensor, after);
  }
}

TEST(MaskReader, RefusesCutAndLongFrames) {
  const Bytes content = Content(5000, 2);
  for (const bool has_size : {true, false}) {
    const Bytes frame = Compress(content, {.has_size = has_size});
    for (size_t size = 0; size < frame.size(); ++size) {
      Bytes tensor(content.size());
      const Bytes cut(frame.begin(), frame.begin() + size);
      ASSERT_EQ(CombineAll(cut, &tensor).code(), Code::kTruncated) << size;
    }
    Bytes longer = frame;
    longer.push_back(std::byte{0});
    Bytes tensor(content.size());
    EXPECT_THAT(CombineAll(longer, &tensor).message(),
                HasSubstr("1 bytes follow the zstd frame"));
    for (const size_t other : {4999u, 5001u}) {
      tensor.assign(other, std::byte{0});
      EXPECT_EQ(CombineAll(frame, &tensor).code(), Code::kCorrupt) << other;
    }
  }
}

// A frame that this accepts, libzstd accepts with the same content; what it
// writes beside the tensor, the sanitizer sees.
TEST(MaskReader, AgreesWithLibzstdOnDamagedFrames) {
  std::mt19937 random(7);
  int accepted = 0;
  for (uint32_t seed = 0; seed < 6000; ++seed) {
    const Bytes content = Content(1 + random() % 4000, seed);
    Bytes frame = Compress(content, {.level = static_cast<int>(1 + seed % 19),
                                     .has_checksum = false});
    const uint32_t times = 1 + random() % 3;
    for (uint32_t i = 0; i < times; ++i) {
      frame[random() % frame.size()] ^=
          static_cast<std::byte>(1u << random() % 8);
    }
    Bytes tensor(content.size());
    if (!CombineAll(frame, &tensor).ok()) continue;
    ++accepted;
    auto reader = FrameReader::Open(frame);
    ASSERT_TRUE(reader.ok());
    Bytes expected(content.size());
    ASSERT_TRUE(reader->Fill(expected).ok()) << seed;
    ASSERT_TRUE(reader->Finish().ok()) << seed;
    ASSERT_EQ(tensor, expected) << seed;
  }
  EXPECT_GT(accepted, 100);
}

}  // namespace
}  // namespace haulway::delta
