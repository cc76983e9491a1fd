#include "tensorizer/tensorizer_crypt.h"

#include <fmt/format.h>
#include <sodium.h>

#include <algorithm>
#include <cassert>

#include "base/checked.h"
#include "tensorizer/secretbox.h"

namespace haulway::tensorizer {

namespace {

static_assert(crypto_pwhash_SALTBYTES == kSaltBytes);
static_assert(crypto_pwhash_ALG_ARGON2ID13 == 2);

std::span<const std::byte, kKeyBytes> KeyOf(const Secret& key) {
  return key.bytes().first<kKeyBytes>();
}

// Calls `unit` for each unit in [offset, offset + length) with its number, its
// offset in that range and its length.
template <class Unit>
Status ForEachUnit(uint64_t chunk_bytes, uint64_t offset, uint64_t length,
                   const Unit& unit) {
  for (uint64_t done = 0; done < length; done += chunk_bytes) {
    HAULWAY_TRY(unit((offset + done) / chunk_bytes, done,
                     std::min(chunk_bytes, length - done)));
  }
  return Status();
}

}  // namespace

void StartSodium() {
  // Without sodium_init(), libsodium uses portable ciphers. It fails only
  // without a source of randomness; libsodium then aborts when it needs one.
  [[maybe_unused]] static const int started = sodium_init();
}

Status CheckKey(const EncryptionKey& given) {
  if (!given.key.empty() && !given.passphrase.empty()) {
    return Status(Code::kInvalidArgument,
                  "both a key and a passphrase: expected one");
  }
  if (!given.key.empty() && given.key.bytes().size() != kKeyBytes) {
    return Status(Code::kInvalidArgument,
                  fmt::format("key has a wrong length: expected {} bytes, "
                              "found {}",
                              kKeyBytes, given.key.bytes().size()));
  }
  return Status();
}

Result<Secret> DeriveKey(const Secret& passphrase,
                         const KeyDerivation& derivation) {
  const std::span<const std::byte> text = passphrase.bytes();
  if (text.empty()) {
    return Status(Code::kInvalidArgument, "passphrase is empty");
  }
  if (derivation.operations < crypto_pwhash_OPSLIMIT_MIN ||
      derivation.operations > crypto_pwhash_OPSLIMIT_MAX ||
      derivation.memory_bytes < crypto_pwhash_MEMLIMIT_MIN ||
      derivation.memory_bytes > crypto_pwhash_MEMLIMIT_MAX) {
    return Status(Code::kInvalidArgument,
                  fmt::format("key derivation with {} operations and {} bytes "
                              "is not allowed",
                              derivation.operations, derivation.memory_bytes));
  }
  StartSodium();
  std::array<std::byte, kKeyBytes> key{};
  const int failed = crypto_pwhash(
      Raw(key.data()), key.size(), reinterpret_cast<const char*>(text.data()),
      text.size(), Raw(derivation.salt.data()), derivation.operations,
      derivation.memory_bytes, crypto_pwhash_ALG_ARGON2ID13);
  Secret secret(key);
  sodium_memzero(key.data(), key.size());
  if (failed != 0) {
    return Status(
        Code::kLimit,
        fmt::format(
            "key derivation needs {} bytes of memory, which are not available",
            derivation.memory_bytes));
  }
  return secret;
}

Status DecryptUnits(const CryptBlock& block, const Secret& key, uint64_t offset,
                    std::span<const std::byte> stored,
                    std::span<std::byte> out) {
  assert(stored.size() == out.size() && key.bytes().size() == kKeyBytes);
  if (stored.empty()) return Status();
  StartSodium();
  assert(block.cipher != Cipher::kNone && offset % block.chunk_bytes == 0);
  return ForEachUnit(
      block.chunk_bytes, offset, stored.size(),
      [&](uint64_t unit, uint64_t at, uint64_t length) -> Status {
        const Nonce nonce = UnitNonce(block.nonce, unit);
        if (!OpenBox(KeyOf(key), nonce, stored.subspan(at, length),
                     out.subspan(at, length),
                     block.macs.subspan(unit * kMacBytes).first<kMacBytes>())) {
          return Status(Code::kAuth,
                        fmt::format("decryption failed: the key is wrong or "
                                    "the data was changed, in unit {}",
                                    unit));
        }
        return Status();
      });
}

void EncryptUnits(const CryptBlock& block, const Secret& key, uint64_t offset,
                  std::span<const std::byte> plain, std::span<std::byte> out,
                  std::span<std::byte> macs) {
  assert(plain.size() == out.size() && key.bytes().size() == kKeyBytes);
  StartSodium();
  [[maybe_unused]] const Status status = ForEachUnit(
      block.chunk_bytes, offset, plain.size(),
      [&](uint64_t unit, uint64_t at, uint64_t length) -> Status {
        const Nonce nonce = UnitNonce(block.nonce, unit);
        const uint64_t mac = (unit - offset / block.chunk_bytes) * kMacBytes;
        SealBox(KeyOf(key), nonce, plain.subspan(at, length),
                out.subspan(at, length), macs.subspan(mac).first<kMacBytes>());
        return Status();
      });
  assert(status.ok());
}

Nonce RandomNonce() {
  StartSodium();
  Nonce nonce;
  randombytes_buf(nonce.data(), nonce.size());
  return nonce;
}

Result<Secret> KeyRing::KeyFor(const CryptBlock& block) const {
  if (!given_.key.empty()) return given_.key;
  if (given_.passphrase.empty()) {
    return Status(Code::kAuth, "file is encrypted: expected a key, found none");
  }
  if (!block.derivation.has_value()) {
    return Status(Code::kAuth,
                  "file is encrypted with a key: expected it, found a "
                  "passphrase");
  }
  // Hold the lock while deriving, so that two threads do not derive the same
  // key.
  const std::lock_guard lock(mutex_);
  for (const auto& [derivation, key] : derived_) {
    if (derivation == *block.derivation) return key;
  }
  // The limits may be any number, so the product saturates.
  uint64_t most = 0;
  if (!CheckedMultiply(limits_.max_kdf_operations, limits_.max_kdf_memory_bytes,
                       &most)) {
    most = UINT64_MAX;
  }
  uint64_t cost = 0;
  if (!CheckedMultiply(block.derivation->operations,
                       block.derivation->memory_bytes, &cost)) {
    cost = UINT64_MAX;
  }
  if (derived_.size() >= limits_.max_kdf_derivations || cost > most - spent_) {
    return Status(
        Code::kLimit,
        fmt::format("file needs more keys than max_kdf_derivations "
                    "{}, or at a higher cost in all than one of "
                    "max_kdf_operations {} and max_kdf_memory_bytes "
                    "{}",
                    limits_.max_kdf_derivations, limits_.max_kdf_operations,
                    limits_.max_kdf_memory_bytes));
  }
  spent_ += cost;
  HAULWAY_ASSIGN(Secret key, DeriveKey(given_.passphrase, *block.derivation));
  derived_.emplace_back(*block.derivation, key);
  return key;
}

}  // namespace haulway::tensorizer
