// Encrypting and decrypting the data of tensors: XSalsa20-Poly1305 in units
// (spec 3.6), with keys by libsodium.

#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "haulway/options.h"
#include "haulway/status.h"
#include "tensorizer/tensorizer_crypt_block.h"

namespace haulway::tensorizer {

// Makes libsodium choose what is fastest on this processor: everything else
// here does so, once.
void StartSodium();

// Fails with kInvalidArgument for a key of a wrong length, and for both a key
// and a passphrase. Neither is no key, and no failure.
Status CheckKey(const EncryptionKey& given);

// The key for a passphrase. Takes the time and memory that the parameters
// name. Fails with kLimit if there is not so much memory, and kInvalidArgument
// for parameters that the algorithm does not allow, or an empty passphrase.
Result<Secret> DeriveKey(const Secret& passphrase,
                         const KeyDerivation& derivation);

// Decrypts whole units from byte `offset` of the data, a multiple of the
// block's chunk_bytes, to its end or that of a unit. `out` may be `stored`
// itself. Fails with kAuth if a MAC differs; then nothing of that unit was
// written.
Status DecryptUnits(const CryptBlock& block, const Secret& key, uint64_t offset,
                    std::span<const std::byte> stored,
                    std::span<std::byte> out);

// The reverse; writes the units' MACs to `macs`, from the one at `offset` on.
void EncryptUnits(const CryptBlock& block, const Secret& key, uint64_t offset,
                  std::span<const std::byte> plain, std::span<std::byte> out,
                  std::span<std::byte> macs);

// Fresh bytes from the system's source of randomness.
Nonce RandomNonce();

// A KeyRing gives the key for each tensor, deriving each at most once.
// Threads: any number at once.
class KeyRing {
 public:
  KeyRing(const EncryptionKey& given, const ParseLimits& limits)
      : given_(given), limits_(limits) {}

  bool empty() const { return given_.empty(); }
  // Rule C06. Fails with kAuth if there is no key, or only a passphrase for
  // data that was not encrypted with one; with kLimit if it would be one
  // derivation too many.
  Result<Secret> KeyFor(const CryptBlock& block) const;

 private:
  const EncryptionKey given_;
  const ParseLimits limits_;
  mutable std::mutex mutex_;
  mutable uint64_t spent_ HAULWAY_GUARDED_BY(mutex_) = 0;  // Bytes passed over.
  mutable std::vector<std::pair<KeyDerivation, Secret>> derived_
      HAULWAY_GUARDED_BY(mutex_);
};

}  // namespace haulway::tensorizer
