// Design: each check returns a failure that says which proof does not hold;
// none says only that "something" is wrong. What an entry of the log must say
// follows from the bundle: its body is read as a list of paths and texts, and
// each expected pair must be among them. A path in the tree is checked with the
// formula of the hashes' number, not by walking the tree, so that a proof of
// any size takes at most 64 steps.

#include "signing/transparency.h"

#include <fmt/format.h>
#include <openssl/ct.h>
#include <openssl/err.h>
#include <openssl/x509v3.h>

#include <algorithm>
#include <bit>
#include <span>
#include <utility>

#include "base/text.h"
#include "signing/certificates.h"
#include "signing/json_reader.h"
#include "signing/keys.h"

namespace haulway::signing {

namespace {

OwnedKey KeyOf(const LogKey& log) {
  const unsigned char* at = Bytes(log.key);
  OwnedKey key(::d2i_PUBKEY(nullptr, &at, static_cast<long>(log.key.size())));
  ::ERR_clear_error();
  return key;
}

struct FreeScts {
  void operator()(STACK_OF(SCT) * list) const { ::SCT_LIST_free(list); }
};

void AppendNumber(uint64_t number, int bytes, std::string* out) {
  for (int i = bytes - 1; i >= 0; --i) {
    *out += static_cast<char>(number >> (8 * i) & 0xFF);
  }
}

// Returns the part of a certificate that its log signed: without the SCT.
std::string SignedPart(X509* certificate) {
  const OwnedCertificate copy(::X509_dup(certificate));
  if (copy == nullptr) return "";
  const int at = ::X509_get_ext_by_NID(copy.get(), NID_ct_precert_scts, -1);
  const Owned<X509_EXTENSION, ::X509_EXTENSION_free> removed(
      ::X509_delete_ext(copy.get(), at));
  unsigned char* bytes = nullptr;
  const int size = ::i2d_re_X509_tbs(copy.get(), &bytes);
  std::string part;
  if (size > 0) {
    part.assign(reinterpret_cast<char*>(bytes), static_cast<size_t>(size));
  }
  ::OPENSSL_free(bytes);
  return part;
}

std::string KeyHashOf(X509* certificate) {
  unsigned char* bytes = nullptr;
  const int size =
      ::i2d_X509_PUBKEY(::X509_get_X509_PUBKEY(certificate), &bytes);
  std::string hash;
  if (size > 0) {
    hash = Sha256Of(std::string_view(reinterpret_cast<char*>(bytes),
                                     static_cast<size_t>(size)));
  }
  ::OPENSSL_free(bytes);
  return hash;
}

std::string NodeHash(std::string_view left, std::string_view right) {
  return Sha256Of(fmt::format("\x01{}{}", left, right));
}

// The signed text of a checkpoint, and its signatures.
struct Checkpoint {
  std::string_view text;
  uint64_t size = 0;
  std::string root;
  std::vector<std::string> signatures;  // Each with the key's id before it.
};

Result<Checkpoint> ParseCheckpoint(std::string_view envelope) {
  const Status wrong(Code::kSignature, "the log's checkpoint is malformed");
  Checkpoint checkpoint;
  const size_t blank = envelope.find("\n\n");
  if (blank == envelope.npos) return wrong;
  checkpoint.text = envelope.substr(0, blank + 1);
  std::string_view lines = checkpoint.text;
  const auto next = [](std::string_view* text) {
    const size_t end = text->find('\n');
    const std::string_view line = text->substr(0, end);
    text->remove_prefix(end == text->npos ? text->size() : end + 1);
    return line;
  };
  next(&lines);  // The origin.
  const std::string_view size = next(&lines);
  if (size.empty() || size.size() > 19) return wrong;
  for (const char c : size) {
    if (c < '0' || c > '9') return wrong;
    checkpoint.size = checkpoint.size * 10 + static_cast<uint64_t>(c - '0');
  }
  auto root = DecodeBase64(next(&lines), "the root");
  if (!root.ok()) return wrong;
  checkpoint.root = *std::move(root);
  std::string_view rest = envelope.substr(blank + 2);
  while (!rest.empty()) {
    std::string_view line = next(&rest);
    constexpr std::string_view kMark = "\u2014 ";
    const size_t space = line.rfind(' ');
    if (!line.starts_with(kMark) || space < kMark.size()) return wrong;
    auto signature = DecodeBase64(line.substr(space + 1), "the signature");
    if (!signature.ok() || signature->size() <= 4) return wrong;
    checkpoint.signatures.push_back(*std::move(signature));
    if (checkpoint.signatures.size() > kMostCertificates) return wrong;
  }
  return checkpoint;
}

Status CheckCheckpoint(const LogEntry& entry, EVP_PKEY* key) {
  HAULWAY_ASSIGN(const Checkpoint checkpoint,
                 ParseCheckpoint(entry.checkpoint));
  if (checkpoint.root != entry.root_hash ||
      checkpoint.size != entry.tree_size) {
    return NotSigned("the log's checkpoint is of another tree");
  }
  const std::string_view id = std::string_view(entry.log_id).substr(0, 4);
  const bool holds = std::ranges::any_of(
      checkpoint.signatures, [&](const std::string& signature) {
        return std::string_view(signature).starts_with(id) &&
               IsSignature(key, std::string_view(signature).substr(4),
                           checkpoint.text);
      });
  return holds ? Status() : NotSigned("the log did not sign its checkpoint");
}

Status CheckPromise(const LogEntry& entry, EVP_PKEY* key) {
  if (entry.promise.empty()) return Status();
  const std::string text = fmt::format(
      R"({{"body":"{}","integratedTime":{},"logID":"{}","logIndex":{}}})",
      Base64(entry.body), entry.time,
      Hex(std::as_bytes(std::span(entry.log_id))), entry.index);
  if (IsSignature(key, entry.promise, text)) return Status();
  return NotSigned("the log did not sign its promise to keep the entry");
}

// Reads the texts at these paths of an entry's body, "spec.payloadHash.value".
// An item of a list has its number as its name.
using Texts = std::vector<std::pair<std::string, std::string>>;

Status ReadTexts(JsonValue& value, const std::string& path, int depth,
                 Texts* texts) {
  simdjson::ondemand::json_type type;
  if (value.type().get(type)) {
    return Status(Code::kCorrupt, "the log entry's body is not valid JSON");
  }
  if (type == simdjson::ondemand::json_type::object) {
    return ReadJsonObject(
        value, path, depth,
        [&](std::string_view key, JsonValue& inner, int at) {
          return ReadTexts(inner, fmt::format("{}.{}", path, key), at, texts);
        });
  }
  if (type == simdjson::ondemand::json_type::array) {
    size_t number = 0;
    return ReadJsonArray(value, path, depth, [&](JsonValue& inner, int at) {
      return ReadTexts(inner, fmt::format("{}.{}", path, number++), at, texts);
    });
  }
  if (type != simdjson::ondemand::json_type::string) {
    return SkipJson(value, path, depth);
  }
  HAULWAY_ASSIGN(std::string text, ReadJsonText(value, path));
  texts->emplace_back(path, std::move(text));
  return Status();
}

std::string PemOf(std::string_view der) {
  const auto certificate = ParseCertificate(der);
  const OwnedBio bio(::BIO_new(::BIO_s_mem()));
  if (!certificate.ok() || bio == nullptr ||
      ::PEM_write_bio_X509(bio.get(), certificate.value().get()) != 1) {
    return "";
  }
  char* text = nullptr;
  const long size = ::BIO_get_mem_data(bio.get(), &text);
  return std::string(text, static_cast<size_t>(size));
}

}  // namespace

std::string RootOfTree(std::string leaf, uint64_t index, uint64_t size,
                       const std::vector<std::string>& path) {
  if (index >= size) return "";
  // The levels at which the leaf's subtree has a neighbour on either side;
  // above them, only those on the left.
  const int inner = std::bit_width(index ^ (size - 1));
  const int border = std::popcount(index >> inner);
  if (path.size() != static_cast<size_t>(inner + border)) return "";
  for (size_t i = 0; i < path.size(); ++i) {
    if (path[i].size() != 32) return "";
    const bool is_left =
        i >= static_cast<size_t>(inner) || (index >> i & 1) != 0;
    leaf = is_left ? NodeHash(path[i], leaf) : NodeHash(leaf, path[i]);
  }
  return leaf;
}

Status CheckPublished(X509* certificate, X509* issuer,
                      const std::vector<LogKey>& logs) {
  int critical = 0;
  const std::unique_ptr<STACK_OF(SCT), FreeScts> list(
      static_cast<STACK_OF(SCT)*>(::X509_get_ext_d2i(
          certificate, NID_ct_precert_scts, &critical, nullptr)));
  ::ERR_clear_error();
  if (list == nullptr || sk_SCT_num(list.get()) != 1) {
    return NotSigned(
        "the signer's certificate needs one time stamp (SCT) of a log "
        "of certificates");
  }
  const SCT* const sct = sk_SCT_value(list.get(), 0);
  const std::string part = SignedPart(certificate);
  const auto text = [](size_t size, unsigned char* bytes) {
    return std::string_view(reinterpret_cast<char*>(bytes), size);
  };
  unsigned char* bytes = nullptr;
  size_t size = ::SCT_get0_extensions(sct, &bytes);
  const std::string extensions(text(size, bytes));
  size = ::SCT_get0_log_id(sct, &bytes);
  const std::string id(text(size, bytes));
  size = ::SCT_get0_signature(sct, &bytes);
  const std::string signature(text(size, bytes));
  std::string message("\0\0", 2);  // Version 1, a certificate's time stamp.
  AppendNumber(::SCT_get_timestamp(sct), 8, &message);
  AppendNumber(1, 2, &message);  // The entry is a precertificate.
  message += KeyHashOf(issuer);
  AppendNumber(part.size(), 3, &message);
  message += part;
  AppendNumber(extensions.size(), 2, &message);
  message += extensions;
  const bool is_known = std::ranges::find(logs, id, &LogKey::id) != logs.end();
  const bool holds =
      !part.empty() && std::ranges::any_of(logs, [&](const LogKey& log) {
        if (is_known && log.id != id) return false;
        const OwnedKey key = KeyOf(log);
        return key != nullptr && IsSignature(key.get(), signature, message,
                                             SignedDigest::kSha256);
      });
  if (holds) return Status();
  return NotSigned(
      "no log that the trusted root names has published the signer's "
      "certificate");
}

Status CheckLogged(const LogEntry& entry, const std::vector<LogKey>& logs) {
  const auto log = std::ranges::find(logs, entry.log_id, &LogKey::id);
  if (log == logs.end()) {
    return NotSigned(
        "the signature is in a log that the trusted root does not "
        "name");
  }
  const OwnedKey key = KeyOf(*log);
  if (key == nullptr) {
    return Status(Code::kInvalidArgument,
                  "a key of a log in the trusted root is malformed");
  }
  const std::string leaf =
      Sha256Of(fmt::format("{}{}", std::string_view("\0", 1), entry.body));
  const std::string root =
      RootOfTree(leaf, entry.proof_index, entry.tree_size, entry.hashes);
  if (root.empty() || root != entry.root_hash) {
    return NotSigned(
        "the log does not have the signature: its proof leads to "
        "another root");
  }
  HAULWAY_TRY(CheckCheckpoint(entry, key.get()));
  return CheckPromise(entry, key.get());
}

Status CheckEntryIsOf(const LogEntry& entry, const Bundle& bundle) {
  Texts texts;
  HAULWAY_TRY(ReadJson(entry.body, "log entry's body",
                       [&](std::string_view key, JsonValue& value, int depth) {
                         return ReadTexts(value, std::string(key), depth,
                                          &texts);
                       }));
  const std::string_view certificate = bundle.certificates.front();
  const std::string signed_bytes =
      SignedBytes(bundle.payload_type, bundle.payload);
  Texts expected = {{"kind", entry.kind}, {"apiVersion", entry.version}};
  if (entry.kind == "dsse" && entry.version == "0.0.1") {
    const std::string hash = Sha256Of(bundle.payload);
    expected.insert(
        expected.end(),
        {{"spec.payloadHash.algorithm", "sha256"},
         {"spec.payloadHash.value", Hex(std::as_bytes(std::span(hash)))},
         {"spec.signatures.0.signature", Base64(bundle.signature)},
         {"spec.signatures.0.verifier", Base64(PemOf(certificate))}});
  } else if (entry.kind == "hashedrekord" && entry.version == "0.0.2") {
    const std::string at = "spec.hashedRekordV002.";
    const std::string key = at + "signature.verifier.";
    expected.insert(expected.end(),
                    {{at + "data.algorithm", "SHA2_256"},
                     {at + "data.digest", Base64(Sha256Of(signed_bytes))},
                     {at + "signature.content", Base64(bundle.signature)},
                     {key + "x509Certificate.rawBytes", Base64(certificate)},
                     {key + "keyDetails", "PKIX_ECDSA_P256_SHA_256"}});
  } else {
    return Status(Code::kUnsupported,
                  fmt::format("a log entry of kind {} {}: expected dsse 0.0.1 "
                              "or hashedrekord 0.0.2",
                              Quote(entry.kind), Quote(entry.version)));
  }
  for (const auto& one : expected) {
    if (std::ranges::find(texts, one) != texts.end()) continue;
    return NotSigned(fmt::format(
        "the log's entry is of another signature: its {} differs", one.first));
  }
  const bool has_more = std::ranges::any_of(texts, [](const auto& text) {
    return text.first.starts_with("spec.signatures.1.");
  });
  return has_more ? NotSigned("the log's entry has several signatures")
                  : Status();
}

}  // namespace haulway::signing
