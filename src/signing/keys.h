// Keys that sign models: on the curves P-256, P-384 and P-521, as PEM.

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "haulway/options.h"
#include "haulway/status.h"
#include "signing/openssl.h"

namespace haulway::signing {

// Return the key in a PEM text. Fail with kInvalidArgument if there is none or
// the passphrase is wrong, and with kUnsupported for a key on another curve.
Result<OwnedKey> ParsePublicKey(std::string_view pem);
Result<OwnedKey> ParsePrivateKey(std::string_view pem,
                                 const Secret& passphrase);

// Fails with kUnsupported, naming what the key is, unless it is on one of the
// curves.
Status CheckCurve(EVP_PKEY* key);

// Returns the lower-case hexadecimal SHA-256 of the public key as PEM, by which
// bundles name it.
Result<std::string> HintOf(EVP_PKEY* key);

// The digest that is signed: that of the curve, or always SHA-256.
enum class SignedDigest : uint8_t { kOfCurve, kSha256 };

// Returns whether `signature` is that of `bytes` under `key`. Keys that are not
// on a curve sign as their kind does: Ed25519 without a digest, RSA with
// SHA-256.
bool IsSignature(EVP_PKEY* key, std::string_view signature,
                 std::string_view bytes,
                 SignedDigest digest = SignedDigest::kOfCurve);
Result<std::string> SignBytes(EVP_PKEY* key, std::string_view bytes);

}  // namespace haulway::signing
