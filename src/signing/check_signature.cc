// Design: a verifier is one of three, which the caller names; the bundle must
// be of the same kind, so that a certificate is never accepted in place of a
// key. Whether the signature holds is known before the statement is parsed, but
// for signatures of version 0.2.0: these are tried only if the statement has
// that version's type, which must be looked at first. Certificates are checked
// at the time at which they began, as the reference does: it records no other.

#include "signing/check_signature.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/text.h"
#include "signing/certificates.h"
#include "signing/json_reader.h"
#include "signing/keys.h"

namespace haulway::signing {

namespace {

std::string_view NameOf(Bundle::Kind kind) {
  constexpr std::string_view kNames[] = {"key", "certificate", "sigstore"};
  return kNames[static_cast<size_t>(kind)];
}

// Checks the envelope's signature: over the statement as it is, or as version
// 0.2.0 spelled it.
Status CheckEnvelope(const Bundle& bundle, EVP_PKEY* key, bool may_be_old) {
  if (bundle.payload_type != kPayloadType) {
    return NotSigned(
        fmt::format("the signature is of a payload of type {}: "
                    "expected {}",
                    Quote(bundle.payload_type), kPayloadType));
  }
  if (IsSignature(key, bundle.signature,
                  SignedBytes(bundle.payload_type, bundle.payload))) {
    return Status();
  }
  if (may_be_old) {
    const auto statement = ParseStatement(bundle.payload);
    const SignedDigest digest = bundle.kind == Bundle::Kind::kKey
                                    ? SignedDigest::kOfCurve
                                    : SignedDigest::kSha256;
    if (statement.ok() && statement->predicate_type == kOldPredicateType &&
        IsSignature(key, bundle.signature,
                    OldSignedBytes(bundle.payload_type, bundle.payload),
                    digest)) {
      return Status();
    }
  }
  return NotSigned(
      "the signature does not hold: the signer did not sign this "
      "statement");
}

Status CheckKey(const Bundle& bundle, const Verifier& verifier,
                SignatureFacts* facts) {
  HAULWAY_ASSIGN(const std::string hint, HintOf(verifier.key.get()));
  if (bundle.hint.has_value() && !bundle.hint->empty() &&
      *bundle.hint != hint) {
    return NotSigned(
        fmt::format("the model is signed with another key: expected "
                    "{}, found {}",
                    hint, Quote(*bundle.hint)));
  }
  HAULWAY_TRY(CheckEnvelope(bundle, verifier.key.get(), /*may_be_old=*/true));
  facts->signer = hint;
  return Status();
}

Status CheckCertificates(const Bundle& bundle, const Verifier& verifier,
                         SignatureFacts* facts,
                         std::vector<std::string>* notes) {
  const OwnedCertificates others(sk_X509_new_null());
  OwnedCertificate leaf;
  for (const std::string& der : bundle.certificates) {
    HAULWAY_ASSIGN(OwnedCertificate one, ParseCertificate(der));
    if (leaf == nullptr) {
      leaf = std::move(one);
    } else {
      sk_X509_push(others.get(), one.release());
    }
  }
  HAULWAY_ASSIGN(const int64_t begin, BeginOf(leaf.get()));
  HAULWAY_ASSIGN(const int64_t end, EndOf(leaf.get()));
  STACK_OF(X509)* const trusted = verifier.certificates.get();
  HAULWAY_TRY(CheckPath(leaf.get(), others.get(), trusted, begin).status());
  if (verifier.at.has_value()) {
    HAULWAY_TRY(
        CheckPath(leaf.get(), others.get(), trusted, *verifier.at).status());
  } else {
    HAULWAY_ASSIGN(const int64_t now, ParseTime("now"));
    if (now > end) {
      notes->push_back(
          fmt::format("the signer's certificate expired at {}; --at now, "
                      "at=\"now\" in Python, refuses it",
                      TimeText(end)));
    }
  }
  if (!MaySign(leaf.get()) && !MaySignCode(leaf.get())) {
    return NotSigned(
        "the signer's certificate is not for signing: expected the "
        "key usage digitalSignature, or codeSigning");
  }
  EVP_PKEY* const key = ::X509_get0_pubkey(leaf.get());
  if (key == nullptr) {
    return Status(Code::kCorrupt, "the key in the certificate is malformed");
  }
  HAULWAY_TRY(CheckCurve(key));
  HAULWAY_TRY(CheckEnvelope(bundle, key, /*may_be_old=*/true));
  facts->signer = SubjectOf(leaf.get());
  facts->issuer = IssuerOf(leaf.get());
  facts->time = TimeText(begin);
  return Status();
}

Status CheckBundle(const Bundle& bundle, const Verifier& verifier,
                   SignatureFacts* facts, std::vector<std::string>* notes) {
  const Bundle::Kind wanted = verifier.key != nullptr ? Bundle::Kind::kKey
                              : verifier.certificates != nullptr
                                  ? Bundle::Kind::kCertificates
                                  : Bundle::Kind::kSigstore;
  if (bundle.kind != wanted) {
    return NotSigned(
        fmt::format("the model is signed by {}, and not by {} as the "
                    "verifier expects",
                    NameOf(bundle.kind), NameOf(wanted)));
  }
  facts->kind = NameOf(bundle.kind);
  switch (bundle.kind) {
    case Bundle::Kind::kKey:
      return CheckKey(bundle, verifier, facts);
    case Bundle::Kind::kCertificates:
      return CheckCertificates(bundle, verifier, facts, notes);
    case Bundle::Kind::kSigstore:
      break;
  }
  HAULWAY_TRY(CheckSigstore(bundle, verifier, facts));
  HAULWAY_ASSIGN(const OwnedCertificate leaf,
                 ParseCertificate(bundle.certificates.front()));
  return CheckEnvelope(bundle, ::X509_get0_pubkey(leaf.get()),
                       /*may_be_old=*/false);
}

bool IsText(std::string_view value, std::string_view mark) {
  const size_t at = value.find_first_not_of(" \t\r\n");
  return at != value.npos && value.substr(at).starts_with(mark);
}

Result<std::string> TextOf(const std::string& value, std::string_view mark,
                           const ReadText& read) {
  return IsText(value, mark) ? Result<std::string>(value) : read(value);
}

// Adds where an option's value comes from.
Status Named(Status status, std::string_view option, const std::string& value,
             std::string_view mark) {
  if (status.ok()) return status;
  // What the caller gave is wrong, not the model.
  if (status.code() == Code::kCorrupt || status.code() == Code::kLimit) {
    status = Status(Code::kInvalidArgument, status.message());
  }
  return std::move(status).Of(IsText(value, mark) ? std::string(option)
                                                  : ShownName(value));
}

constexpr std::string_view kPemMark = "-----BEGIN";
constexpr std::string_view kJsonMark = "{";

}  // namespace

Status CheckOneVerifier(const SignatureOptions& options) {
  const auto wrong = [](std::string_view what) {
    return Status(Code::kInvalidArgument, what);
  };
  const bool has_identity = !options.identity.empty() ||
                            !options.issuer.empty() ||
                            !options.trusted_root.empty();
  const int kinds = static_cast<int>(!options.public_key.empty()) +
                    static_cast<int>(!options.certificate_chain.empty()) +
                    static_cast<int>(has_identity);
  if (kinds == 0) {
    return wrong(
        "nothing says who must have signed the model: expected a "
        "public key, a certificate chain, or an identity with its "
        "issuer and a trusted root");
  }
  if (kinds > 1) {
    return wrong(
        "several say who must have signed the model: expected one of "
        "a public key, a certificate chain, and an identity");
  }
  if (has_identity && (options.identity.empty() || options.issuer.empty() ||
                       options.trusted_root.empty())) {
    return wrong(
        "an identity needs its issuer and a trusted root: expected "
        "all three");
  }
  if (options.at.empty()) return Status();
  return ParseTime(options.at).status();
}

Result<Verifier> MakeVerifier(const SignatureOptions& options,
                              const ReadText& read) {
  HAULWAY_TRY(CheckOneVerifier(options));
  Verifier verifier;
  if (!options.at.empty()) {
    HAULWAY_ASSIGN(verifier.at, ParseTime(options.at));
  }
  if (!options.public_key.empty()) {
    HAULWAY_ASSIGN(const std::string pem,
                   TextOf(options.public_key, kPemMark, read));
    auto key = ParsePublicKey(pem);
    if (!key.ok()) {
      return Named(key.status(), "public_key", options.public_key, kPemMark);
    }
    verifier.key = std::move(key).value();
    return verifier;
  }
  if (!options.certificate_chain.empty()) {
    std::vector<std::string> texts;
    for (const std::string& value : options.certificate_chain) {
      HAULWAY_ASSIGN(std::string pem, TextOf(value, kPemMark, read));
      texts.push_back(std::move(pem));
    }
    auto certificates = ParsePemCertificates(texts);
    if (!certificates.ok()) {
      return Named(certificates.status(), "certificate_chain",
                   options.certificate_chain.front(), kPemMark);
    }
    verifier.certificates = std::move(certificates).value();
    return verifier;
  }
  HAULWAY_ASSIGN(const std::string json,
                 TextOf(options.trusted_root, kJsonMark, read));
  auto root = ParseTrustedRoot(json);
  if (!root.ok()) {
    return Named(root.status(), "trusted_root", options.trusted_root,
                 kJsonMark);
  }
  verifier.root = std::move(root).value();
  verifier.identity = options.identity;
  verifier.issuer = options.issuer;
  return verifier;
}

Result<CheckedSignature> CheckSignature(std::string_view text,
                                        const Verifier& verifier) {
  HAULWAY_ASSIGN(const Bundle bundle, ParseBundle(text));
  CheckedSignature checked;
  HAULWAY_TRY(CheckBundle(bundle, verifier, &checked.facts, &checked.notes));
  HAULWAY_ASSIGN(checked.statement, ParseStatement(bundle.payload));
  const Statement& statement = checked.statement;
  SignatureFacts& facts = checked.facts;
  facts.subject = statement.subject;
  facts.method = statement.has_pieces ? "shards" : "files";
  facts.hash_type = WordOf(statement.hash);
  if (statement.has_pieces) facts.shard_size = statement.piece_bytes;
  facts.predicate_type = statement.predicate_type;
  return checked;
}

}  // namespace haulway::signing
