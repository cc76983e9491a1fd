// Signed models: a signature says which files a model has, with a digest of
// each, and who says so. It is one file, in the format of OpenSSF
// model-signing; see docs/signing.md.
//
// Sign() makes one, and VerifySignature() checks one. Every call that opens a
// model can check one too, in the pass that reads the model: SourceOptions
// (open.h) names the signature and its verifier, or has a SignedModel. Then no
// byte is returned before it was compared; signature.h has the options.
//
// A private key is never part of a message.

#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "haulway/fields.h"
#include "haulway/open.h"
#include "haulway/options.h"
#include "haulway/signature.h"
#include "haulway/status.h"

namespace haulway {

// The digest of each file. Only kSha256 is read by every verifier.
enum class ModelHash : uint8_t { kSha256, kBlake2b, kBlake3 };
inline constexpr std::string_view kModelHashWords[] = {"sha256", "blake2b",
                                                       "blake3"};
constexpr std::span<const std::string_view> WordsOf(ModelHash) {
  return kModelHashWords;
}

struct SignedSubject {
  std::string name;    // The last part of the model's path.
  std::string sha256;  // Over the digests of all files, in hexadecimal digits.
};

inline constexpr FieldTable kSignedSubjectFields{
    Field("name", &SignedSubject::name, "name of the model when it was signed"),
    Field("sha256", &SignedSubject::sha256,
          "SHA-256 over the digests of all files"),
};
constexpr const auto& FieldsOf(const SignedSubject&) {
  return kSignedSubjectFields;
}

// What a signature says, and who signed.
struct SignatureFacts {
  std::string kind;    // "key", "certificate" or "sigstore".
  std::string signer;  // SHA-256 of the key; a name; an identity.
  std::string issuer;  // Vouches for the signer; empty for a key.
  std::string time;    // When it was signed, as far as is proven; or empty.
  SignedSubject subject;
  std::string method;  // "files" or "shards".
  std::string hash_type;
  std::optional<uint64_t> shard_size;
  std::string predicate_type;
};

inline constexpr FieldTable kSignatureFactFields{
    Field("kind", &SignatureFacts::kind,
          "\"key\", \"certificate\" or \"sigstore\""),
    Field("signer", &SignatureFacts::signer,
          "SHA-256 of the public key as PEM, the name in the certificate, or "
          "the identity"),
    Field("issuer", &SignatureFacts::issuer,
          "name of the certificate's issuer, or URL of the service that "
          "vouched for the identity",
          Spelling::kTextOrNone),
    Field("time", &SignatureFacts::time,
          "time at which the certificates were checked", Spelling::kTextOrNone),
    Field("subject", &SignatureFacts::subject, "the model"),
    Field("method", &SignatureFacts::method, "\"files\" or \"shards\""),
    Field("hash_type", &SignatureFacts::hash_type, "digest of each file"),
    Field("shard_size", &SignatureFacts::shard_size,
          "size of the pieces that were digested, for \"shards\""),
    Field("predicate_type", &SignatureFacts::predicate_type,
          "type of the signed statement"),
};
constexpr const auto& FieldsOf(const SignatureFacts&) {
  return kSignatureFactFields;
}

// A fault of a signed model.
struct SignatureFinding {
  Code code = Code::kSignature;
  std::string message;
  std::string file;  // In the model; empty: the signature itself.
};

inline constexpr FieldTable kSignatureFindingFields{
    Field("code", &SignatureFinding::code, "code of the fault, as of an error"),
    Field("message", &SignatureFinding::message, "the fault"),
    Field("file", &SignatureFinding::file,
          "file in the model; None for the signature itself",
          Spelling::kTextOrNone),
};
constexpr const auto& FieldsOf(const SignatureFinding&) {
  return kSignatureFindingFields;
}

struct SignatureReport {
  std::string file;
  bool ok = true;
  std::optional<SignatureFacts> signature;  // Absent if it does not hold.
  uint64_t files = 0;                       // That were compared.
  uint64_t checked_bytes = 0;
  std::vector<SignatureFinding> findings;
  std::vector<std::string> notes;
};

inline constexpr FieldTable kSignatureReportFields{
    Field("file", &SignatureReport::file, "the model", Spelling::kPath),
    Field("ok", &SignatureReport::ok,
          "true if the signature holds, the files are those that were signed, "
          "and the checkpoints among them are well formed"),
    Field("signature", &SignatureReport::signature,
          "who signed what; None if the signature does not hold"),
    Field("files", &SignatureReport::files, "number of files compared"),
    Field("checked_bytes", &SignatureReport::checked_bytes,
          "bytes whose digest was compared"),
    Field("findings", &SignatureReport::findings, "faults"),
    Field("notes", &SignatureReport::notes,
          "what is no fault, such as a certificate that has expired since"),
};
constexpr const auto& FieldsOf(const SignatureReport&) {
  return kSignatureReportFields;
}

struct VerifySignatureOptions {
  SourceOptions source;  // `signature` says who must have signed.
  OpenOptions open;      // For the checkpoints in the model.
  int threads = 0;       // 0: as many as this process may use.
  std::function<void(uint64_t done, uint64_t total)> progress = nullptr;
  const std::atomic<bool>* cancel = nullptr;  // Set to true to stop.
};

// Checks the signature of a model, a file or folder, then every file, then the
// structure of the checkpoints among them. Faults of the signature and of the
// files become findings. Fails with kInvalidArgument for options that name no
// verifier, or two; with kNotFound for a missing model, signature or key; with
// kUnsupported for what this version cannot check.
HAULWAY_EXPORT Result<SignatureReport> VerifySignature(
    std::string_view model, const VerifySignatureOptions& options);

struct SignOptions {
  std::string private_key;  // PEM: a path, or the text itself.
  Secret passphrase;        // If the key is encrypted.
  // PEM: the signer's certificate, and those of its issuers that the signature
  // shall contain; for a signature by certificate.
  std::string signing_certificate;
  std::vector<std::string> certificate_chain;
  ModelHash hash = ModelHash::kSha256;
  std::optional<uint64_t> shard_size;
  std::vector<std::string> ignore_paths;  // In the model.
  bool ignore_git_paths = true;
  bool allow_symlinks = false;
  int threads = 0;  // 0: as many as this process may use.
  std::function<void(uint64_t done, uint64_t total)> progress = nullptr;
  const std::atomic<bool>* cancel = nullptr;  // Set to true to stop.
};

struct SignReport {
  std::string file;
  std::string out;
  SignedSubject subject;
  std::string method;
  std::string hash_type;
  std::optional<uint64_t> shard_size;
  uint64_t files = 0;
  uint64_t bytes = 0;
  std::vector<std::string> ignore_paths;
};

inline constexpr FieldTable kSignReportFields{
    Field("file", &SignReport::file, "the model", Spelling::kPath),
    Field("out", &SignReport::out, "the signature", Spelling::kPath),
    Field("subject", &SignReport::subject, "what was signed"),
    Field("method", &SignReport::method, "\"files\" or \"shards\""),
    Field("hash_type", &SignReport::hash_type, "digest of each file"),
    Field("shard_size", &SignReport::shard_size,
          "size of the pieces that were digested, for \"shards\""),
    Field("files", &SignReport::files, "number of files"),
    Field("bytes", &SignReport::bytes, "size of all files"),
    Field("ignore_paths", &SignReport::ignore_paths,
          "paths in the model that are not signed"),
};
constexpr const auto& FieldsOf(const SignReport&) { return kSignReportFields; }

// Signs a local file or folder, and writes the signature to the file `out`,
// which appears in one step. Fails with kInvalidArgument for a key that is no
// private key or does not belong to the certificate; with kUnsupported for keys
// on other curves than P-256, P-384 and P-521, and for files that cannot be
// signed: links unless they are allowed, special files, names that are not
// UTF-8.
HAULWAY_EXPORT Result<SignReport> Sign(std::string_view model,
                                       std::string_view out,
                                       const SignOptions& options);

// A SignedModel is a model whose signature was checked, and whose files are
// compared with it as they are read. OpenSource() takes it in SourceOptions.
//
// Threads: any number at once.
class HAULWAY_EXPORT SignedModel {
 public:
  virtual ~SignedModel() = default;

  virtual const SignatureFacts& facts() const = 0;
  virtual const std::vector<std::string>& notes() const = 0;

  // Compares all files of the model with kAll, otherwise those that were opened
  // so far, on `threads` threads (0: as many as this process may use). Fails
  // with kMismatch, naming the files that differ.
  virtual Status Compare(SignatureScope scope, int threads,
                         const std::atomic<bool>* cancel = nullptr) = 0;

  // From now on, keeps in memory only the file that was read last, besides what
  // callers hold: for reading one file after another. A file that is read again
  // is compared again.
  virtual void KeepLast() = 0;
};

// Checks the signature of `model`, which OpenSource() will open, and that the
// model has the files that the signature lists, and no others. Reads no file of
// the model. Fails with kSignature, kMismatch, kCorrupt, kLimit, kUnsupported,
// kNotFound or kInvalidArgument; docs/signing.md says when.
HAULWAY_EXPORT Result<std::shared_ptr<SignedModel>> OpenSignedModel(
    std::string_view model, const SourceOptions& options);

}  // namespace haulway
