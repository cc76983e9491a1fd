// The cipher of tensorizer files: XSalsa20-Poly1305, bit for bit as in
// libsodium's crypto_secretbox_detached(), but with OpenSSL's Poly1305, which
// takes a third of the time.

#pragma once

#include <cstddef>
#include <span>

#include "haulway/options.h"
#include "tensorizer/tensorizer_crypt_block.h"

namespace haulway::tensorizer {

// Bytes as libsodium and OpenSSL take them.
inline unsigned char* Raw(std::byte* bytes) {
  return reinterpret_cast<unsigned char*>(bytes);
}
inline const unsigned char* Raw(const std::byte* bytes) {
  return reinterpret_cast<const unsigned char*>(bytes);
}

// Encrypts `plain` to `out`, which has the same length, and fills `mac`. `out`
// may be `plain`.
void SealBox(std::span<const std::byte, kKeyBytes> key, const Nonce& nonce,
             std::span<const std::byte> plain, std::span<std::byte> out,
             std::span<std::byte, kMacBytes> mac);

// Decrypts. If the MAC differs, returns false and writes nothing.
[[nodiscard]] bool OpenBox(std::span<const std::byte, kKeyBytes> key,
                           const Nonce& nonce,
                           std::span<const std::byte> sealed,
                           std::span<std::byte> out,
                           std::span<const std::byte, kMacBytes> mac);

}  // namespace haulway::tensorizer
