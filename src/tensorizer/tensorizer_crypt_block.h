// The crypt block of a tensor header: how the data is encrypted. A codec: bytes
// to facts and back; it runs no cipher.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "haulway/options.h"
#include "haulway/status.h"

namespace haulway::tensorizer {

inline constexpr size_t kNonceBytes = 24;
inline constexpr size_t kMacBytes = 16;
inline constexpr size_t kSaltBytes = 16;
// Size of an encryption unit in files that the reference writes.
inline constexpr uint64_t kChunkBytes = 2 * kMiB;

using Nonce = std::array<std::byte, kNonceBytes>;

// Parameters that derive the key from a passphrase: Argon2id 1.3, as in
// libsodium's crypto_pwhash().
struct KeyDerivation {
  uint64_t operations = 0;
  uint64_t memory_bytes = 0;
  std::array<std::byte, kSaltBytes> salt{};

  friend bool operator==(const KeyDerivation&, const KeyDerivation&) = default;
};

enum class Cipher : uint8_t { kNone, kParallel, kSequential };

struct CryptBlock {
  std::optional<KeyDerivation> derivation;
  Cipher cipher = Cipher::kNone;  // kNone only for tensors without data.
  // Size of one unit, or of the data if there is only one. Unit i uses nonce +
  // i.
  uint64_t chunk_bytes = 0;
  Nonce nonce{};
  // View of the parsed bytes; kMacBytes per unit.
  std::span<const std::byte> macs;
};

// Parses the block by rules C01 to C03. `body` is the block without its length.
Result<CryptBlock> ParseCryptBlock(std::span<const std::byte> body,
                                   uint64_t data_bytes,
                                   const ParseLimits& limits);

// Encodes the block with its length, as the reference writes it.
std::vector<std::byte> EncodeCryptBlock(const CryptBlock& block);

// Returns the nonce of unit `i`: `nonce` as a little-endian number, plus i.
Nonce UnitNonce(const Nonce& nonce, uint64_t i);

}  // namespace haulway::tensorizer
