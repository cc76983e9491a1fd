// Property: any bytes parsed as the file of a signature result in a bundle
// within its limits or in a typed error. A bundle of a key or of certificates,
// written anew, is parsed as the same one. No verifier accepts a bundle that
// another one refuses as malformed.

#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "signing/bundle.h"
#include "signing/check_signature.h"
#include "signing/keys.h"

namespace {

using haulway::Code;
using haulway::signing::Bundle;

// The point that generates P-256, whose private key is 1.
constexpr std::string_view kPublicKey =
    "-----BEGIN PUBLIC KEY-----\n"
    "MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEaxfR8uEsQkf4vOblY6RA8ncDfYEt\n"
    "6zOg9KE5RdiYwpZP40Li/hp/m47n60p8D54WK84zV2sxXs7LtkBoN79R9Q==\n"
    "-----END PUBLIC KEY-----\n";

bool IsSame(const Bundle& a, const Bundle& b) {
  return a.kind == b.kind && a.hint.value_or("") == b.hint.value_or("") &&
         a.certificates == b.certificates && a.payload == b.payload &&
         a.signature == b.signature;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto bundle = haulway::signing::ParseBundle(text);
  if (!bundle.ok()) {
    const Code code = bundle.status().code();
    if (code != Code::kCorrupt && code != Code::kLimit &&
        code != Code::kUnsupported) {
      abort();
    }
    return 0;
  }
  if (bundle->certificates.size() > haulway::signing::kMostCertificates ||
      bundle->timestamps.size() > haulway::signing::kMostTimestamps) {
    abort();
  }
  if (bundle->kind != Bundle::Kind::kSigstore) {
    const auto again = haulway::signing::ParseBundle(WriteBundle(*bundle));
    if (!again.ok() || !IsSame(*bundle, *again)) abort();
  }
  haulway::signing::Verifier verifier;
  auto key = haulway::signing::ParsePublicKey(kPublicKey);
  if (!key.ok()) abort();
  verifier.key = std::move(key).value();
  const auto checked = CheckSignature(text, verifier);
  if (checked.ok() && checked->facts.kind != "key") abort();
  return 0;
}
