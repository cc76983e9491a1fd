// Encrypts and decrypts the data of tensors: XSalsa20-Poly1305 in units, with
// keys derived by libsodium.

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

// Lets libsodium choose its fastest implementations for this processor. The
// other functions here call it; only the first call has an effect.
void StartSodium();

// Fails with kInvalidArgument for a key of the wrong length, and for both a key
// and a passphrase. Neither of them is valid and means no key.
Status CheckKey(const EncryptionKey& given);

// Derives the key for a passphrase. Takes the time and memory that the
// parameters name. Fails with kLimit if there is not enough memory, and with
// kInvalidArgument for parameters that the algorithm does not allow or for an
// empty passphrase.
Result<Secret> DeriveKey(const Secret& passphrase,
                         const KeyDerivation& derivation);

// Decrypts whole units from byte `offset` of the data, a multiple of the
// block's chunk_bytes. `stored` ends at the end of a unit or of the data. `out`
// may be `stored` itself. Fails with kAuth if a MAC differs; nothing of that
// unit is written then.
Status DecryptUnits(const CryptBlock& block, const Secret& key, uint64_t offset,
                    std::span<const std::byte> stored,
                    std::span<std::byte> out);

// Encrypts whole units, and writes their MACs to `macs`, whose first is that of
// the unit at `offset`.
void EncryptUnits(const CryptBlock& block, const Secret& key, uint64_t offset,
                  std::span<const std::byte> plain, std::span<std::byte> out,
                  std::span<std::byte> macs);

// Returns random bytes from the operating system.
Nonce RandomNonce();

// A KeyRing returns the key of each tensor. It derives each key at most once.
// Threads: any number at once.
class KeyRing {
 public:
  KeyRing(const EncryptionKey& given, const ParseLimits& limits)
      : given_(given), limits_(limits) {}

  bool empty() const { return given_.empty(); }
  // Returns the key by rule C06. Fails with kAuth if there is no key, or only a
  // passphrase for data that was encrypted with a key, and with kLimit if that
  // would need more derivations, or a higher total cost, than the limits allow.
  Result<Secret> KeyFor(const CryptBlock& block) const;

 private:
  const EncryptionKey given_;
  const ParseLimits limits_;
  mutable std::mutex mutex_;
  // Total cost of the derivations: the sum of operations times memory bytes.
  mutable uint64_t spent_ HAULWAY_GUARDED_BY(mutex_) = 0;
  mutable std::vector<std::pair<KeyDerivation, Secret>> derived_
      HAULWAY_GUARDED_BY(mutex_);
};

}  // namespace haulway::tensorizer
