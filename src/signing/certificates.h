// Certificates of signers: from the signer's to one that the caller trusts.

#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "haulway/status.h"
#include "signing/openssl.h"

namespace haulway::signing {

// Returns the certificates in PEM texts, in order. Fails with kInvalidArgument
// if there is none.
Result<OwnedCertificates> ParsePemCertificates(
    std::span<const std::string> texts);
// Parses one certificate. Fails with kCorrupt if `der` is something else, or
// more.
Result<OwnedCertificate> ParseCertificate(std::string_view der);

// Seconds since 1970. Fail with kCorrupt for a time that is none.
Result<int64_t> BeginOf(const X509* certificate);
Result<int64_t> EndOf(const X509* certificate);
Result<int64_t> SecondsOf(const ASN1_TIME* time);

// Checks the path from `leaf` to a self-signed certificate of `trusted` at a
// time, over `others` and the rest of `trusted`: signatures, validity, CA
// flags, path lengths. Returns the path, from the leaf on. Fails with
// kSignature.
Result<OwnedCertificates> CheckPath(X509* leaf, STACK_OF(X509) * others,
                                    STACK_OF(X509) * trusted, int64_t time);

// What the certificate's key may be used for.
bool MaySign(X509* certificate);      // KeyUsage has digitalSignature.
bool MaySignCode(X509* certificate);  // ExtendedKeyUsage has codeSigning.

// Returns names as RFC 2253 spells them.
std::string SubjectOf(const X509* certificate);
std::string IssuerOf(const X509* certificate);

// Returns "2026-11-28T12:00:00Z"; and seconds of such a text, or of "now".
std::string TimeText(int64_t seconds);
Result<int64_t> ParseTime(std::string_view text);

}  // namespace haulway::signing
