// Whether a bundle is the signature of someone whom the caller trusts.

#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "haulway/signing.h"
#include "haulway/status.h"
#include "signing/bundle.h"
#include "signing/openssl.h"
#include "signing/statement.h"
#include "signing/trusted_root.h"

namespace haulway::signing {

// Whom the caller trusts: one of the three.
struct Verifier {
  OwnedKey key;
  OwnedCertificates certificates;
  std::optional<TrustedRoot> root;
  std::string identity, issuer;  // With `root`.
  std::optional<int64_t> at;     // Seconds since 1970.
};

struct CheckedSignature {
  Statement statement;
  SignatureFacts facts;
  std::vector<std::string> notes;
};

// Fails with kInvalidArgument unless the options name one verifier. Reads no
// file.
Status CheckOneVerifier(const SignatureOptions& options);

// Makes the verifier that the options name. `read` returns the text of a file.
using ReadText = std::function<Result<std::string>(const std::string& path)>;
Result<Verifier> MakeVerifier(const SignatureOptions& options,
                              const ReadText& read);

// Checks a signature, then parses its statement. Fails with kSignature if the
// verifier does not vouch for it, and as ParseBundle() and ParseStatement() do.
Result<CheckedSignature> CheckSignature(std::string_view text,
                                        const Verifier& verifier);

// Checks everything but the statement of a signature by an identity
// (Sigstore).
Status CheckSigstore(const Bundle& bundle, const Verifier& verifier,
                     SignatureFacts* facts);

}  // namespace haulway::signing
