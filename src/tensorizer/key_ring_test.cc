#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <span>
#include <string_view>

#include "tensorizer/tensorizer_crypt.h"

namespace haulway::tensorizer {
namespace {

EncryptionKey Passphrase() {
  constexpr std::string_view kWords = "open sesame";
  EncryptionKey key;
  key.passphrase = Secret(std::as_bytes(std::span(kWords)));
  return key;
}

// Returns the crypt block of a tensor whose key derivation has the lowest cost.
CryptBlock Block(unsigned salt, uint64_t operations = 1) {
  CryptBlock block;
  block.derivation.emplace();
  block.derivation->operations = operations;
  block.derivation->memory_bytes = 8192;
  block.derivation->salt[0] = static_cast<std::byte>(salt);
  return block;
}

TEST(KeyRing, DerivesOneKeyForEachSaltAndCost) {
  ParseLimits limits;
  limits.max_kdf_derivations = 2;
  const KeyRing ring(Passphrase(), limits);
  const auto first = ring.KeyFor(Block(1));
  ASSERT_TRUE(first.ok()) << first.status().message();
  for (int tensor = 0; tensor < 1000; ++tensor) {
    ASSERT_TRUE(ring.KeyFor(Block(1)).ok());
  }
  const auto second = ring.KeyFor(Block(1, 2));
  ASSERT_TRUE(second.ok());
  EXPECT_FALSE(std::ranges::equal(first->bytes(), second->bytes()));
}

TEST(KeyRing, DerivesNoMoreKeysThanAFileMayHave) {
  ParseLimits limits;
  const KeyRing ring(Passphrase(), limits);
  for (unsigned salt = 0; salt < limits.max_kdf_derivations; ++salt) {
    ASSERT_TRUE(ring.KeyFor(Block(salt)).ok()) << salt;
  }
  const auto more = ring.KeyFor(Block(limits.max_kdf_derivations));
  ASSERT_FALSE(more.ok());
  EXPECT_EQ(more.status().code(), Code::kLimit);
  EXPECT_NE(more.status().message().find("max_kdf_derivations 16"),
            std::string_view::npos);
  EXPECT_TRUE(ring.KeyFor(Block(0)).ok()) << "known keys stay";
}

TEST(KeyRing, SpendsNoMoreInAllThanOneMayCost) {
  ParseLimits limits;
  limits.max_kdf_operations = 4;
  limits.max_kdf_memory_bytes = 8192;
  const KeyRing ring(Passphrase(), limits);
  EXPECT_TRUE(ring.KeyFor(Block(1, 2)).ok());
  EXPECT_TRUE(ring.KeyFor(Block(2, 2)).ok());
  EXPECT_EQ(ring.KeyFor(Block(3, 1)).status().code(), Code::kLimit);
}

}  // namespace
}  // namespace haulway::tensorizer
