#include "signing/keys.h"

#include <fmt/format.h>
#include <openssl/err.h>
#include <openssl/sha.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "base/text.h"

namespace haulway::signing {

namespace {

struct Curve {
  std::string_view name;
  const EVP_MD* (*digest)();
};
constexpr Curve kCurves[] = {{"prime256v1", ::EVP_sha256},
                             {"secp384r1", ::EVP_sha384},
                             {"secp521r1", ::EVP_sha512}};

// Returns the name of the key's curve, or an empty string.
std::string CurveOf(EVP_PKEY* key) {
  std::array<char, 64> name{};
  size_t size = 0;
  if (::EVP_PKEY_get_base_id(key) != EVP_PKEY_EC ||
      ::EVP_PKEY_get_group_name(key, name.data(), name.size(), &size) != 1) {
    return "";
  }
  return std::string(name.data(), size);
}

const Curve* FindCurve(EVP_PKEY* key) {
  const auto* const found =
      std::ranges::find(kCurves, CurveOf(key), &Curve::name);
  return found == std::end(kCurves) ? nullptr : found;
}

Status NoKey(std::string_view expected) {
  return Status(Code::kInvalidArgument,
                fmt::format("it is no key: expected PEM of {}", expected));
}

// Gives the passphrase to libcrypto.
int GivePassphrase(char* out, int size, int, void* passphrase) {
  const auto bytes = static_cast<const Secret*>(passphrase)->bytes();
  if (bytes.size() > static_cast<size_t>(size)) return -1;
  std::memcpy(out, bytes.data(), bytes.size());
  return static_cast<int>(bytes.size());
}

Result<OwnedKey> OnCurve(OwnedKey key) {
  HAULWAY_TRY(CheckCurve(key.get()));
  return key;
}

}  // namespace

std::string WhyFailed() {
  const unsigned long error = ::ERR_peek_last_error();
  const char* const reason = ::ERR_reason_error_string(error);
  ::ERR_clear_error();
  return reason == nullptr ? "unknown reason" : reason;
}

std::string Sha256Of(std::string_view text) {
  std::string digest(SHA256_DIGEST_LENGTH, '\0');
  ::SHA256(Bytes(text), text.size(),
           reinterpret_cast<unsigned char*>(digest.data()));
  return digest;
}

Status CheckCurve(EVP_PKEY* key) {
  if (FindCurve(key) != nullptr) return Status();
  std::string found = CurveOf(key);
  if (found.empty()) {
    const char* const kind = ::EVP_PKEY_get0_type_name(key);
    found = kind == nullptr ? "unknown" : kind;
  }
  return Status(Code::kUnsupported,
                fmt::format("a key of {}: expected one on the curve "
                            "secp256r1, secp384r1 or secp521r1",
                            Quote(found)));
}

Result<OwnedKey> ParsePublicKey(std::string_view pem) {
  const OwnedBio bio = ReadingBio(pem);
  OwnedKey key(::PEM_read_bio_PUBKEY(bio.get(), nullptr, nullptr, nullptr));
  ::ERR_clear_error();
  if (key == nullptr) return NoKey("a public key, -----BEGIN PUBLIC KEY-----");
  return OnCurve(std::move(key));
}

Result<OwnedKey> ParsePrivateKey(std::string_view pem,
                                 const Secret& passphrase) {
  const OwnedBio bio = ReadingBio(pem);
  OwnedKey key(::PEM_read_bio_PrivateKey(bio.get(), nullptr, GivePassphrase,
                                         const_cast<Secret*>(&passphrase)));
  ::ERR_clear_error();
  if (key != nullptr) return OnCurve(std::move(key));
  if (pem.find("ENCRYPTED") == pem.npos) return NoKey("a private key");
  return Status(Code::kInvalidArgument,
                passphrase.empty()
                    ? "the private key is encrypted: expected its passphrase"
                    : "the passphrase does not decrypt the private key");
}

Result<std::string> HintOf(EVP_PKEY* key) {
  const OwnedBio bio(::BIO_new(::BIO_s_mem()));
  if (bio == nullptr || ::PEM_write_bio_PUBKEY(bio.get(), key) != 1) {
    return Status(Code::kInternal,
                  fmt::format("cannot write a public key: {}", WhyFailed()));
  }
  char* text = nullptr;
  const long size = ::BIO_get_mem_data(bio.get(), &text);
  const std::string digest =
      Sha256Of(std::string_view(text, static_cast<size_t>(size)));
  return Hex(std::as_bytes(std::span(digest)));
}

bool IsSignature(EVP_PKEY* key, std::string_view signature,
                 std::string_view bytes, SignedDigest digest) {
  const Owned<EVP_MD_CTX, ::EVP_MD_CTX_free> context(::EVP_MD_CTX_new());
  const Curve* const curve = FindCurve(key);
  const EVP_MD* hash = ::EVP_sha256();
  if (curve != nullptr && digest == SignedDigest::kOfCurve) {
    hash = curve->digest();
  }
  if (::EVP_PKEY_get_base_id(key) == EVP_PKEY_ED25519) hash = nullptr;
  const bool holds =
      context != nullptr &&
      ::EVP_DigestVerifyInit(context.get(), nullptr, hash, nullptr, key) == 1 &&
      ::EVP_DigestVerify(context.get(), Bytes(signature), signature.size(),
                         Bytes(bytes), bytes.size()) == 1;
  ::ERR_clear_error();
  return holds;
}

Result<std::string> SignBytes(EVP_PKEY* key, std::string_view bytes) {
  HAULWAY_TRY(CheckCurve(key));
  const Owned<EVP_MD_CTX, ::EVP_MD_CTX_free> context(::EVP_MD_CTX_new());
  std::string signature(256, '\0');
  size_t size = signature.size();
  if (context == nullptr ||
      ::EVP_DigestSignInit(context.get(), nullptr, FindCurve(key)->digest(),
                           nullptr, key) != 1 ||
      ::EVP_DigestSign(context.get(),
                       reinterpret_cast<unsigned char*>(signature.data()),
                       &size, Bytes(bytes), bytes.size()) != 1) {
    return Status(Code::kInternal, fmt::format("cannot sign: {}", WhyFailed()));
  }
  signature.resize(size);
  return signature;
}

}  // namespace haulway::signing
