#include "delta/mask_encoder.h"

#include <gtest/gtest.h>
#include <zstd.h>

#include <algorithm>
#include <cstddef>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "delta/mask_reader.h"

namespace haulway::delta {
namespace {

using Mask = std::vector<std::byte>;

// Returns a frame with these masks as blocks.
Mask FrameOfBlocks(MaskEncoder* encoder, std::span<const Mask> masks) {
  // A window of 128 KiB, and no size.
  Mask frame;
  for (const int byte : {0x28, 0xB5, 0x2F, 0xFD, 0x00, 0x38}) {
    frame.push_back(static_cast<std::byte>(byte));
  }
  for (const Mask& mask : masks) {
    encoder->Compare(Mask(mask.size()), mask);
    const auto block = encoder->Encode(&mask == &masks.back());
    EXPECT_LE(block.size(), mask.size() + 3);
    frame.insert(frame.end(), block.begin(), block.end());
  }
  return frame;
}

// Checks that libzstd and MaskReader decode the blocks.
void CheckBlocks(MaskEncoder* encoder, std::span<const Mask> masks,
                 const std::string& what) {
  const Mask frame = FrameOfBlocks(encoder, masks);
  Mask content;
  for (const Mask& mask : masks) {
    content.insert(content.end(), mask.begin(), mask.end());
  }
  Mask decoded(content.size());
  const size_t size = ZSTD_decompress(decoded.data(), decoded.size(),
                                      frame.data(), frame.size());
  ASSERT_FALSE(ZSTD_isError(size)) << what << ": " << ZSTD_getErrorName(size);
  ASSERT_EQ(size, content.size()) << what;
  ASSERT_EQ(decoded, content) << what;
  auto reader = MaskReader::Open(frame, content.size());
  ASSERT_TRUE(reader.ok());
  std::ranges::fill(decoded, std::byte{0});
  for (size_t at = 0; at < decoded.size();) {
    const auto rest = std::span(decoded).subspan(at);
    const auto step = reader->Combine(
        rest.first(std::min(rest.size(), MaskEncoder::kMostBytes)));
    ASSERT_TRUE(step.ok()) << what << ": " << step.status().message();
    at += step->bytes;
  }
  ASSERT_TRUE(reader->Finish().ok()) << what;
  ASSERT_EQ(decoded, content) << what;
}

// How the values of changed bytes are distributed.
enum class Values { kOne, kFew, kSkewed, kAny, kHigh };

std::byte ValueOf(Values values, std::mt19937* random) {
  const uint32_t number = (*random)();
  switch (values) {
    case Values::kOne:
      return std::byte{1};
    case Values::kFew:
      return static_cast<std::byte>(1 << number % 8);
    case Values::kSkewed:  // Codes of 11 bits would not be enough.
      return static_cast<std::byte>(std::min(32, std::countr_zero(number)) * 5 +
                                    1);
    case Values::kAny:
      return static_cast<std::byte>(1 + number % 255);
    case Values::kHigh:
      break;
  }
  return static_cast<std::byte>(200 + number % 56);
}

Mask RandomMask(size_t size, double share, Values values,
                std::mt19937* random) {
  Mask mask(size);
  std::uniform_real_distribution<double> chance;
  for (std::byte& byte : mask) {
    if (chance(*random) < share) byte = ValueOf(values, random);
  }
  return mask;
}

TEST(MaskEncoder, MakesBlocksThatLibzstdDecodes) {
  auto encoder = std::move(MaskEncoder::Make()).value();
  std::mt19937 random(1);
  for (const auto values : {Values::kOne, Values::kFew, Values::kSkewed,
                            Values::kAny, Values::kHigh}) {
    for (const double share :
         {0.0, 0.0002, 0.004, 0.01, 0.05, 0.1, 0.3, 0.7, 1.0}) {
      for (const size_t size :
           {1u, 2u, 5u, 6u, 63u, 64u, 65u, 999u, 20'000u, 131'071u, 131'072u}) {
        const Mask mask = RandomMask(size, share, values, &random);
        CheckBlocks(&encoder, std::span(&mask, 1),
                    std::to_string(static_cast<int>(values)) + ", " +
                        std::to_string(share) + ", " + std::to_string(size));
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST(MaskEncoder, MakesSmallMasksThatLibzstdDecodes) {
  auto encoder = std::move(MaskEncoder::Make()).value();
  std::mt19937 random(2);
  for (int i = 0; i < 1500; ++i) {
    const auto values = static_cast<Values>(random() % 5);
    const double share = std::vector<double>{0.01, 0.1, 0.2, 0.5}[random() % 4];
    const Mask mask = RandomMask(1 + random() % 3000, share, values, &random);
    CheckBlocks(&encoder, std::span(&mask, 1), std::to_string(i));
    if (HasFatalFailure()) return;
  }
}

TEST(MaskEncoder, MakesBlocksThatMeanTheSameAfterOthers) {
  auto encoder = std::move(MaskEncoder::Make()).value();
  std::mt19937 random(3);
  for (int i = 0; i < 40; ++i) {
    std::vector<Mask> masks;
    for (int k = 0; k < 5; ++k) {
      const double share =
          std::vector<double>{0, 0.0001, 0.02, 0.3, 1}[random() % 5];
      masks.push_back(RandomMask(k < 4 ? 20'000 : 1 + random() % 20'000, share,
                                 static_cast<Values>(random() % 5), &random));
    }
    CheckBlocks(&encoder, masks, std::to_string(i));
    if (HasFatalFailure()) return;
  }
}

TEST(MaskEncoder, MakesBlocksOfRunsOfAnyLength) {
  auto encoder = std::move(MaskEncoder::Make()).value();
  // Runs of each length, with as many literals before each.
  for (const size_t literals : {1u, 3u, 15u, 16u, 17u, 200u, 70'000u}) {
    for (const size_t first : {0u, 30u, 1020u, 65'530u, 100'000u}) {
      Mask mask;
      for (size_t zeros = first; zeros < first + 40; ++zeros) {
        if (mask.size() + zeros + literals > MaskEncoder::kMostBytes) break;
        mask.resize(mask.size() + zeros);
        mask.resize(mask.size() + literals, std::byte{7});
      }
      if (mask.empty()) continue;
      CheckBlocks(&encoder, std::span(&mask, 1),
                  std::to_string(literals) + ", " + std::to_string(first));
      if (HasFatalFailure()) return;
    }
  }
}

TEST(MaskEncoder, MakesSmallerBlocksThanLibzstd) {
  auto encoder = std::move(MaskEncoder::Make()).value();
  std::mt19937 random(4);
  for (const double share : {0.0005, 0.01, 0.05}) {
    for (const auto values : {Values::kOne, Values::kFew, Values::kAny}) {
      const Mask mask =
          RandomMask(MaskEncoder::kMostBytes, share, values, &random);
      Mask theirs(ZSTD_compressBound(mask.size()));
      theirs.resize(ZSTD_compress(theirs.data(), theirs.size(), mask.data(),
                                  mask.size(), 1));
      const Mask ours = FrameOfBlocks(&encoder, std::span(&mask, 1));
      EXPECT_LT(ours.size(), theirs.size()) << share;
    }
  }
}

TEST(MaskEncoder, StatesABlockWithoutChangesInFourBytes) {
  auto encoder = std::move(MaskEncoder::Make()).value();
  const Mask zeros(MaskEncoder::kMostBytes);
  EXPECT_FALSE(encoder.Compare(zeros, zeros));
  const auto block = encoder.Encode(/*is_last=*/false);
  const auto unchanged = MaskEncoder::Unchanged(zeros.size());
  EXPECT_TRUE(std::ranges::equal(block, unchanged));
}

}  // namespace
}  // namespace haulway::delta
