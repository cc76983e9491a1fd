#include "tensorizer/secretbox.h"

#include <gtest/gtest.h>
#include <sodium.h>

#include <algorithm>
#include <array>
#include <random>
#include <vector>

#include "tensorizer/tensorizer_crypt.h"

namespace haulway::tensorizer {
namespace {

using Bytes = std::vector<std::byte>;
using RawKey = std::array<std::byte, kKeyBytes>;
using Mac = std::array<std::byte, kMacBytes>;

class SecretBox : public ::testing::Test {
 protected:
  SecretBox() {
    StartSodium();
    Fill(key_);
    Fill(nonce_);
  }

  void Fill(std::span<std::byte> out) {
    for (std::byte& byte : out) byte = static_cast<std::byte>(random_());
  }
  Bytes Message(size_t length) {
    Bytes bytes(length);
    Fill(bytes);
    return bytes;
  }
  // Encrypts with libsodium alone.
  Bytes Reference(const Bytes& plain, Mac* mac) const {
    Bytes sealed(plain.size() + 1);  // libsodium does not accept null.
    crypto_secretbox_detached(Raw(sealed.data()), Raw(mac->data()),
                              Raw(plain.data()), plain.size(),
                              Raw(nonce_.data()), Raw(key_.data()));
    sealed.pop_back();
    return sealed;
  }
  void ExpectSame(size_t length) {
    SCOPED_TRACE(length);
    Fill(key_);
    Fill(nonce_);
    const Bytes plain = Message(length);
    Mac expected_mac;
    const Bytes expected = Reference(plain, &expected_mac);

    Bytes sealed(length);
    Mac mac;
    SealBox(key_, nonce_, plain, sealed, mac);
    EXPECT_EQ(sealed, expected);
    EXPECT_EQ(mac, expected_mac);
    Bytes in_place = plain;
    SealBox(key_, nonce_, in_place, in_place, mac);
    EXPECT_EQ(in_place, expected);
    EXPECT_EQ(mac, expected_mac);

    Bytes opened(length);
    EXPECT_TRUE(OpenBox(key_, nonce_, expected, opened, mac));
    EXPECT_EQ(opened, plain);
    EXPECT_TRUE(OpenBox(key_, nonce_, in_place, in_place, mac));
    EXPECT_EQ(in_place, plain);
  }

  std::mt19937 random_{7};
  RawKey key_;
  Nonce nonce_;
};

TEST_F(SecretBox, IsLibsodiumsOfEveryShortLength) {
  for (size_t length = 0; length <= 1100; ++length) ExpectSame(length);
}

TEST_F(SecretBox, IsLibsodiumsOfRandomLengths) {
  for (int i = 0; i < 300; ++i) ExpectSame(random_() % 70'000);
}

TEST_F(SecretBox, IsLibsodiumsAroundBlocksAndUnits) {
  for (const size_t edge : {size_t{4096}, size_t{65536}, size_t{kChunkBytes}}) {
    for (const size_t by : {64, 33, 32, 31, 16, 1, 0}) {
      ExpectSame(edge - by);
      ExpectSame(edge + by);
    }
  }
}

TEST_F(SecretBox, WritesNothingIfAnyBitOfTheMacDiffers) {
  const Bytes plain = Message(200);
  Mac mac;
  const Bytes sealed = Reference(plain, &mac);
  for (size_t bit = 0; bit < 8 * kMacBytes; ++bit) {
    Mac changed = mac;
    changed[bit / 8] ^= std::byte{1} << (bit % 8);
    Bytes out(sealed.size(), std::byte{0xA5});
    EXPECT_FALSE(OpenBox(key_, nonce_, sealed, out, changed));
    EXPECT_EQ(out, Bytes(sealed.size(), std::byte{0xA5}));
    Bytes in_place = sealed;
    EXPECT_FALSE(OpenBox(key_, nonce_, in_place, in_place, changed));
    EXPECT_EQ(in_place, sealed);
  }
}

TEST_F(SecretBox, WritesNothingIfAnyByteDiffers) {
  for (const size_t length : {1, 16, 32, 33, 64, 200, 1000}) {
    const Bytes plain = Message(length);
    Mac mac;
    const Bytes sealed = Reference(plain, &mac);
    for (size_t i = 0; i < length; ++i) {
      Bytes changed = sealed;
      changed[i] ^= static_cast<std::byte>(1 + random_() % 255);
      const Bytes before = changed;
      EXPECT_FALSE(OpenBox(key_, nonce_, changed, changed, mac));
      EXPECT_EQ(changed, before);
    }
  }
}

TEST_F(SecretBox, RefusesAnotherKeyNonceOrLength) {
  const Bytes plain = Message(100);
  Mac mac;
  Bytes sealed = Reference(plain, &mac);
  Bytes out(100);
  RawKey key = key_;
  key[31] ^= std::byte{0x80};
  EXPECT_FALSE(OpenBox(key, nonce_, sealed, out, mac));
  Nonce nonce = nonce_;
  nonce[23] ^= std::byte{1};
  EXPECT_FALSE(OpenBox(key_, nonce, sealed, out, mac));
  EXPECT_FALSE(OpenBox(key_, nonce_, std::span(sealed).first(99),
                       std::span(out).first(99), mac));
}

}  // namespace
}  // namespace haulway::tensorizer
