// Compares SHA-256 with OpenSSL's, in pieces and in lock-step.

#include "base/sha256.h"

#include <gtest/gtest.h>
#include <openssl/evp.h>

#include <algorithm>
#include <random>
#include <vector>

#include "base/sha256_lanes.h"

namespace haulway {
namespace {

std::vector<std::byte> RandomBytes(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<std::byte> bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random() & 0xFF);
  return bytes;
}

Sha256Value Expected(std::span<const std::byte> bytes) {
  Sha256Value value;
  EXPECT_EQ(EVP_Digest(bytes.data(), bytes.size(),
                       reinterpret_cast<unsigned char*>(value.data()), nullptr,
                       EVP_sha256(), nullptr),
            1);
  return value;
}

TEST(Sha256, OfEveryLengthAcrossBlocks) {
  const std::vector<std::byte> bytes = RandomBytes(300, 1);
  for (size_t length = 0; length <= bytes.size(); ++length) {
    const auto message = std::span(bytes).subspan(0, length);
    Sha256 sha256;
    sha256.Update(message);
    EXPECT_EQ(sha256.Finish(), Expected(message)) << length;
    // Finish() resets the object.
    sha256.Update(message.subspan(0, length / 2));
    sha256.Update(message.subspan(length / 2));
    EXPECT_EQ(sha256.Finish(), Expected(message)) << length;
  }
}

// Digests `count` messages together, in pieces of random lengths.
void CheckTogether(size_t count, size_t longest, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<std::vector<std::byte>> messages;
  std::vector<Sha256> digests(count);
  std::vector<Sha256*> pointers;
  for (size_t i = 0; i < count; ++i) {
    messages.push_back(
        RandomBytes(random() % (longest + 1), static_cast<uint32_t>(i)));
    pointers.push_back(&digests[i]);
  }
  std::vector<size_t> done(count);
  for (bool all = false; !all;) {
    all = true;
    std::vector<std::span<const std::byte>> pieces;
    for (size_t i = 0; i < count; ++i) {
      const size_t left = messages[i].size() - done[i];
      const size_t length = std::min<size_t>(left, random() % 3000);
      pieces.push_back(std::span(messages[i]).subspan(done[i], length));
      done[i] += length;
      all = all && done[i] == messages[i].size();
    }
    Sha256::UpdateTogether(pointers, pieces);
  }
  for (size_t i = 0; i < count; ++i) {
    EXPECT_EQ(digests[i].Finish(), Expected(messages[i]))
        << i << " of " << count;
  }
}

TEST(Sha256, TogetherIsTheSame) {
  for (size_t count = 0; count <= 70; ++count) CheckTogether(count, 10000, 7);
  CheckTogether(16, 64, 1);
  CheckTogether(17, 0, 2);
}

TEST(Sha256, EveryKernelCompressesAlike) {
  const std::vector<std::byte> bytes = RandomBytes(kMaxSha256Lanes * 1000, 3);
  for (const Sha256Lanes* lanes :
       {Avx512TwiceSha256Lanes(), Avx512Sha256Lanes(), Avx2Sha256Lanes(),
        ShaSha256Lanes()}) {
    if (lanes == nullptr) continue;  // The processor cannot run this kernel.
    for (const size_t blocks : {0, 1, 2, 15}) {
      std::vector<uint32_t> states(8 * lanes->lanes);
      std::vector<const std::byte*> messages;
      for (size_t l = 0; l < lanes->lanes; ++l) {
        // Unaligned, and overlapping.
        messages.push_back(bytes.data() + l * 1000 + l);
        constexpr uint32_t kStart[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372,
                                        0xa54ff53a, 0x510e527f, 0x9b05688c,
                                        0x1f83d9ab, 0x5be0cd19};
        for (size_t w = 0; w < 8; ++w) {
          states[w * lanes->lanes + l] = kStart[w];
        }
      }
      lanes->compress(states.data(), messages.data(), blocks);
      for (size_t l = 0; l < lanes->lanes; ++l) {
        // The padding of a message of whole blocks is one more block, which the
        // same kernel compresses.
        std::array<std::byte, 64> padding{};
        padding[0] = std::byte{0x80};
        padding[62] = static_cast<std::byte>(blocks * 512 >> 8);
        padding[63] = static_cast<std::byte>(blocks * 512 & 0xFF);
        const std::vector<const std::byte*> last(lanes->lanes, padding.data());
        std::vector<uint32_t> ended = states;
        lanes->compress(ended.data(), last.data(), 1);
        const Sha256Value expected =
            Expected(std::span(messages[l], blocks * 64));
        for (size_t i = 0; i < 32; ++i) {
          EXPECT_EQ(
              static_cast<std::byte>(
                  ended[i / 4 * lanes->lanes + l] >> (24 - i % 4 * 8) & 0xFF),
              expected[i]);
        }
      }
    }
  }
}

}  // namespace
}  // namespace haulway
