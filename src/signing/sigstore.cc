// Signatures by an identity: a certificate that lives for minutes, and logs
// that prove when it was used. The order of checks is that of sigstore-python
// 4.5.

#include <fmt/format.h>
#include <openssl/asn1.h>
#include <openssl/err.h>
#include <openssl/x509v3.h>

#include <algorithm>
#include <set>
#include <utility>

#include "base/text.h"
#include "signing/certificates.h"
#include "signing/check_signature.h"
#include "signing/keys.h"
#include "signing/time_stamps.h"
#include "signing/transparency.h"

namespace haulway::signing {

namespace {

// github.com/sigstore/fulcio, docs/oid-info.md.
constexpr const char* kIssuerOid = "1.3.6.1.4.1.57264.1.1";
constexpr const char* kNameOid = "1.3.6.1.4.1.57264.1.7";

using OwnedObject = Owned<ASN1_OBJECT, ::ASN1_OBJECT_free>;

std::string TextOf(const ASN1_STRING* text) {
  return std::string(
      reinterpret_cast<const char*>(::ASN1_STRING_get0_data(text)),
      static_cast<size_t>(::ASN1_STRING_length(text)));
}

// Returns the times at which the signature is proven to have existed.
Result<std::set<int64_t>> TimesOf(const Bundle& bundle,
                                  const TrustedRoot& root) {
  std::set<int64_t> times;
  const std::set<std::string_view> tokens(bundle.timestamps.begin(),
                                          bundle.timestamps.end());
  if (tokens.size() != bundle.timestamps.size()) {
    return NotSigned("the bundle has a time stamp twice");
  }
  if (!tokens.empty() && root.time_stampers.empty()) {
    return NotSigned(
        "the trusted root names no authority for time stamps, and the "
        "bundle has some");
  }
  for (const std::string& token : bundle.timestamps) {
    const auto time =
        CheckTimeStamp(token, bundle.signature, root.time_stampers);
    if (time.has_value()) times.insert(*time);
  }
  const LogEntry& entry = *bundle.entry;
  const bool has_time = entry.version == "0.0.1" &&
                        (entry.kind == "dsse" || entry.kind == "hashedrekord");
  if (has_time && !entry.promise.empty() && entry.time != 0 &&
      entry.time < uint64_t{1} << 40) {
    times.insert(static_cast<int64_t>(entry.time));
  }
  if (!times.empty()) return times;
  return NotSigned(
      "nothing proves when the model was signed: expected a time "
      "stamp that verifies, or the promise of a log with its time");
}

// Checks the path from the leaf to an authority of the trusted root. Returns
// the certificate that issued the leaf.
Result<OwnedCertificate> CheckIssued(X509* leaf, const TrustedRoot& root,
                                     int64_t time) {
  Status failure = NotSigned(
      "the trusted root names no authority that was valid "
      "when the model was signed");
  for (const Authority& authority : root.authorities) {
    if (!authority.validity.Has(time)) continue;
    const OwnedCertificates others(sk_X509_new_null()),
        trusted(sk_X509_new_null());
    for (const std::string& der : authority.certificates) {
      auto one = ParseCertificate(der);
      if (!one.ok()) continue;
      const bool is_root = &der == &authority.certificates.back();
      sk_X509_push(is_root ? trusted.get() : others.get(),
                   std::move(one).value().release());
    }
    auto path = CheckPath(leaf, others.get(), trusted.get(), time);
    if (!path.ok()) {
      failure = path.status();
      continue;
    }
    if (sk_X509_num(path.value().get()) < 2) continue;
    X509* const issuer = sk_X509_value(path.value().get(), 1);
    ::X509_up_ref(issuer);
    return OwnedCertificate(issuer);
  }
  return failure;
}

// Returns the raw text of an extension, or an empty string.
std::string ExtensionOf(X509* certificate, const char* oid) {
  const OwnedObject object(::OBJ_txt2obj(oid, 1));
  const int at = ::X509_get_ext_by_OBJ(certificate, object.get(), -1);
  if (at < 0) return "";
  return TextOf(::X509_EXTENSION_get_data(::X509_get_ext(certificate, at)));
}

struct FreeNames {
  void operator()(GENERAL_NAMES* names) const { ::GENERAL_NAMES_free(names); }
};

std::vector<std::string> NamesOf(X509* certificate) {
  std::vector<std::string> names;
  const std::unique_ptr<GENERAL_NAMES, FreeNames> all(
      static_cast<GENERAL_NAMES*>(::X509_get_ext_d2i(
          certificate, NID_subject_alt_name, nullptr, nullptr)));
  ::ERR_clear_error();
  const OwnedObject other(::OBJ_txt2obj(kNameOid, 1));
  for (int i = 0; all != nullptr && i < sk_GENERAL_NAME_num(all.get()); ++i) {
    const GENERAL_NAME* const name = sk_GENERAL_NAME_value(all.get(), i);
    if (name->type == GEN_EMAIL || name->type == GEN_URI) {
      names.push_back(TextOf(name->d.ia5));
    } else if (name->type == GEN_OTHERNAME &&
               ::OBJ_cmp(name->d.otherName->type_id, other.get()) == 0 &&
               name->d.otherName->value->type == V_ASN1_UTF8STRING) {
      names.push_back(TextOf(name->d.otherName->value->value.utf8string));
    }
  }
  return names;
}

Status CheckIdentity(X509* leaf, const Verifier& verifier) {
  const std::string issuer = ExtensionOf(leaf, kIssuerOid);
  if (issuer != verifier.issuer) {
    return NotSigned(
        fmt::format("another service vouched for the signer: expected "
                    "{}, found {}",
                    Quote(verifier.issuer), Quote(issuer)));
  }
  const std::vector<std::string> names = NamesOf(leaf);
  if (std::ranges::find(names, verifier.identity) != names.end()) {
    return Status();
  }
  return NotSigned(fmt::format(
      "the model is signed by another: expected {}, found "
      "{}",
      Quote(verifier.identity), names.empty() ? "none" : Quote(names.front())));
}

}  // namespace

Status CheckSigstore(const Bundle& bundle, const Verifier& verifier,
                     SignatureFacts* facts) {
  const TrustedRoot& root = *verifier.root;
  HAULWAY_ASSIGN(const OwnedCertificate leaf,
                 ParseCertificate(bundle.certificates.front()));
  HAULWAY_ASSIGN(std::set<int64_t> times, TimesOf(bundle, root));
  const int64_t first = *times.begin();
  if (verifier.at.has_value()) times.insert(*verifier.at);
  HAULWAY_ASSIGN(const int64_t begin, BeginOf(leaf.get()));
  HAULWAY_ASSIGN(const int64_t end, EndOf(leaf.get()));
  OwnedCertificate issuer;
  for (const int64_t time : times) {
    HAULWAY_ASSIGN(issuer, CheckIssued(leaf.get(), root, time));
    if (time < begin || time > end) {
      return NotSigned(fmt::format(
          "the signer's certificate was not valid at {}", TimeText(time)));
    }
  }
  HAULWAY_TRY(CheckPublished(leaf.get(), issuer.get(), root.certificate_logs));
  if (!MaySign(leaf.get()) || !MaySignCode(leaf.get())) {
    return NotSigned(
        "the signer's certificate is not for signing: expected the "
        "key usage digitalSignature, and codeSigning");
  }
  HAULWAY_TRY(CheckIdentity(leaf.get(), verifier));
  HAULWAY_TRY(CheckLogged(*bundle.entry, root.logs));
  EVP_PKEY* const key = ::X509_get0_pubkey(leaf.get());
  if (key == nullptr) {
    return Status(Code::kCorrupt, "the key in the certificate is malformed");
  }
  HAULWAY_TRY(CheckCurve(key));
  HAULWAY_TRY(CheckEntryIsOf(*bundle.entry, bundle));
  facts->signer = verifier.identity;
  facts->issuer = verifier.issuer;
  facts->time = TimeText(first);
  return Status();
}

}  // namespace haulway::signing
