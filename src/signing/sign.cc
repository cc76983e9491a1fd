// Signs a local model.
//
// Design: everything that can be refused is, before a byte is digested: the
// key, the certificates, the names and kinds of the files. Files are digested a
// hundred at a time, because each stays open meanwhile. The signature is
// written last, and appears in one step. What a model has is decided when its
// folder is listed: a file that is added later is not signed.

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <system_error>
#include <utility>

#include "base/no_memory.h"
#include "base/text.h"
#include "haulway/signing.h"
#include "haulway/sink.h"
#include "haulway/source.h"
#include "signing/bundle.h"
#include "signing/certificates.h"
#include "signing/digest_files.h"
#include "signing/keys.h"
#include "signing/model_access.h"
#include "signing/statement.h"

namespace haulway {

namespace {

using signing::Bundle;
using signing::DigestJob;
using signing::IgnoredPaths;
using signing::ModelEntry;
using signing::Resource;
using signing::Statement;

// A file of PEM has at most so many bytes.
constexpr uint64_t kMostPemBytes = 1 * kMiB;
// Files that are open at a time.
constexpr size_t kFilesAtOnce = 128;

Result<std::string> ReadPem(const std::string& value) {
  const size_t at = value.find_first_not_of(" \t\r\n");
  if (at != value.npos && value.substr(at).starts_with("-----BEGIN")) {
    return value;
  }
  HAULWAY_ASSIGN(const auto source, OpenFileSource(value));
  if (source->size() > kMostPemBytes) {
    return Status(Code::kInvalidArgument, "it is too large for PEM").Of(value);
  }
  std::string text(source->size(), '\0');
  HAULWAY_TRY(source->ReadAt(0, std::as_writable_bytes(std::span(text))));
  return text;
}

// The private key, and the certificates that go into the bundle.
struct Signer {
  signing::OwnedKey key;
  std::vector<std::string> certificates;  // DER.
};

Result<Signer> ReadSigner(const SignOptions& options) {
  Signer signer;
  HAULWAY_ASSIGN(const std::string pem, ReadPem(options.private_key));
  auto key = signing::ParsePrivateKey(pem, options.passphrase);
  if (!key.ok()) return key.status().In("private_key");
  signer.key = std::move(key).value();
  if (options.signing_certificate.empty()) {
    if (options.certificate_chain.empty()) return signer;
    return Status(Code::kInvalidArgument,
                  "a certificate chain needs the signer's certificate: "
                  "expected the option signing_certificate");
  }
  std::vector<std::string> files = {options.signing_certificate};
  files.insert(files.end(), options.certificate_chain.begin(),
               options.certificate_chain.end());
  for (const std::string& file : files) {
    HAULWAY_ASSIGN(const std::string text, ReadPem(file));
    HAULWAY_ASSIGN(const auto found,
                   signing::ParsePemCertificates(std::span(&text, 1)));
    for (int i = 0; i < sk_X509_num(found.get()); ++i) {
      X509* const one = sk_X509_value(found.get(), i);
      if (signer.certificates.empty() &&
          ::X509_check_private_key(one, signer.key.get()) != 1) {
        (void)signing::WhyFailed();
        return Status(Code::kInvalidArgument,
                      "the private key does not belong to the signer's "
                      "certificate");
      }
      unsigned char* bytes = nullptr;
      const int size = ::i2d_X509(one, &bytes);
      signer.certificates.emplace_back(reinterpret_cast<char*>(bytes),
                                       static_cast<size_t>(std::max(size, 0)));
      ::OPENSSL_free(bytes);
    }
  }
  if (signer.certificates.size() > signing::kMostCertificates) {
    return Status(Code::kLimit, fmt::format("more than {} certificates",
                                            signing::kMostCertificates));
  }
  return signer;
}

Status CannotSign(const ModelEntry& entry, std::string_view why) {
  return Status(Code::kUnsupported,
                fmt::format("cannot sign {}: {}", Quote(entry.name), why));
}

// Fails for what a statement cannot say.
Status CheckEntry(const ModelEntry& entry, const Statement& statement) {
  switch (entry.kind) {
    case ModelEntry::Kind::kFile:
      break;
    case ModelEntry::Kind::kLink:
      if (statement.allow_symlinks) break;
      return CannotSign(entry,
                        "it is a symbolic link: the option "
                        "allow_symlinks follows it");
    case ModelEntry::Kind::kLinkToFolder:
      return CannotSign(entry, "it is a link to a folder");
    case ModelEntry::Kind::kBrokenLink:
      return CannotSign(entry, "it is a link to nothing");
    case ModelEntry::Kind::kSpecial:
      return CannotSign(entry, "it is no regular file");
  }
  if (!IsUtf8(entry.name)) return CannotSign(entry, "its name is not UTF-8");
  if (!statement.has_pieces) return Status();
  if (entry.name.find(':') != entry.name.npos) {
    return CannotSign(entry, "names in shards cannot have a ':'");
  }
  if (entry.bytes == 0) {
    return CannotSign(entry, "shards say nothing of an empty file");
  }
  return Status();
}

// Adds the digests of some files to the statement.
Status AddDigests(const signing::ModelAccess& access,
                  std::span<const ModelEntry> entries,
                  const signing::DigestOptions& options, Statement* statement) {
  std::vector<std::shared_ptr<const ByteSource>> sources;
  std::vector<DigestJob> jobs;
  std::vector<Resource> resources;
  for (const ModelEntry& entry : entries) {
    HAULWAY_ASSIGN(auto source, access.Open(entry.name));
    const uint64_t size = source->size();
    const uint64_t piece =
        statement->has_pieces ? statement->piece_bytes : size;
    for (uint64_t begin = 0; begin == 0 || begin < size; begin += piece) {
      const uint64_t length = std::min(piece, size - begin);
      jobs.push_back({.source = source.get(),
                      .offset = begin,
                      .length = length,
                      .hash = statement->hash});
      Resource& one = resources.emplace_back();
      one.name = entry.name;
      if (statement->has_pieces) {
        one.begin = begin;
        one.end = begin + length;
      }
      if (statement->resources.size() + resources.size() >
          signing::kMostResources) {
        return Status(Code::kLimit,
                      fmt::format("the model has more than {} files or shards",
                                  signing::kMostResources));
      }
      if (piece == 0) break;
    }
    sources.push_back(std::move(source));
  }
  HAULWAY_TRY(DigestAll(jobs, options));
  for (size_t i = 0; i < jobs.size(); ++i) {
    HAULWAY_TRY(std::move(jobs[i].status));
    resources[i].digest = std::move(jobs[i].digest);
    statement->resources.push_back(std::move(resources[i]));
  }
  return Status();
}

Status WriteSignature(const std::string& out, std::string_view text) {
  HAULWAY_ASSIGN(const auto sink, OpenFileSink(out));
  HAULWAY_TRY(sink->Begin(text.size()).status());
  HAULWAY_TRY(sink->WriteAt(0, std::as_bytes(std::span(text))));
  return sink->Commit(text.size());
}

Result<SignReport> SignModel(const std::string& model, const std::string& out,
                             const SignOptions& options) {
  if (options.private_key.empty()) {
    return Status(Code::kInvalidArgument,
                  "nothing to sign with: expected a private key");
  }
  if (options.shard_size.has_value() &&
      (options.hash == ModelHash::kBlake3 || *options.shard_size == 0)) {
    return Status(Code::kInvalidArgument,
                  "shards have a size above 0, and sha256 or blake2b");
  }
  HAULWAY_ASSIGN(const Signer signer, ReadSigner(options));
  HAULWAY_ASSIGN(const auto access, signing::AccessLocalModel(model));

  Statement statement;
  statement.hash = options.hash;
  statement.has_pieces = options.shard_size.has_value();
  statement.piece_bytes = options.shard_size.value_or(0);
  statement.allow_symlinks = options.allow_symlinks;
  std::error_code error;
  std::filesystem::path path =
      std::filesystem::absolute(model, error).lexically_normal();
  if (path.filename().empty()) path = path.parent_path();
  statement.subject.name = path.filename().native();
  if (!IsUtf8(statement.subject.name)) {
    return Status(Code::kUnsupported, "the model's name is not UTF-8")
        .Of(model);
  }
  IgnoredPaths ignored;
  for (const std::string& one : options.ignore_paths) {
    signing::AddIgnored(*access, one, &ignored);
  }
  const auto own = signing::NameWithin(model, out);
  if (own.has_value() && *own != signing::kOneFile) ignored.Add(*own);
  if (options.ignore_git_paths) {
    for (const std::string_view git : signing::kGitPaths) ignored.Add(git);
  }
  statement.ignore_paths.assign(ignored.paths().begin(), ignored.paths().end());
  for (const std::string& one : statement.ignore_paths) {
    if (!IsUtf8(one)) {
      return Status(
          Code::kUnsupported,
          fmt::format("the path to ignore {} is not UTF-8", Quote(one)));
    }
  }
  HAULWAY_ASSIGN(auto listed, access->List(ignored));
  std::vector<ModelEntry>& entries = *listed;
  std::ranges::sort(entries, signing::IsBefore, &ModelEntry::name);
  uint64_t total = 0;
  for (const ModelEntry& entry : entries) {
    HAULWAY_TRY(CheckEntry(entry, statement));
    total += entry.bytes;
  }
  uint64_t before = 0;
  for (size_t at = 0; at < entries.size(); at += kFilesAtOnce) {
    const auto some = std::span(entries).subspan(
        at, std::min(kFilesAtOnce, entries.size() - at));
    signing::DigestOptions digest{.threads = options.threads,
                                  .cancel = options.cancel};
    if (options.progress != nullptr) {
      digest.progress = [&](uint64_t done) {
        options.progress(before + done, total);
      };
    }
    HAULWAY_TRY(AddDigests(*access, some, digest, &statement));
    for (const ModelEntry& entry : some) before += entry.bytes;
  }

  Bundle bundle;
  bundle.payload = WriteStatement(&statement);
  HAULWAY_ASSIGN(bundle.signature,
                 signing::SignBytes(signer.key.get(),
                                    signing::SignedBytes(signing::kPayloadType,
                                                         bundle.payload)));
  if (signer.certificates.empty()) {
    HAULWAY_ASSIGN(bundle.hint, signing::HintOf(signer.key.get()));
  } else {
    bundle.kind = Bundle::Kind::kCertificates;
    bundle.certificates = signer.certificates;
  }
  const std::string text = WriteBundle(bundle);
  if (text.size() > signing::kMostBundleBytes) {
    return Status(Code::kLimit,
                  fmt::format("the signature has {} bytes: expected at most {}",
                              text.size(), signing::kMostBundleBytes));
  }
  HAULWAY_TRY(WriteSignature(out, text));

  SignReport report;
  report.file = model;
  report.out = out;
  report.subject = statement.subject;
  report.method = statement.has_pieces ? "shards" : "files";
  report.hash_type = WordOf(statement.hash);
  report.shard_size = options.shard_size;
  report.files = entries.size();
  report.bytes = total;
  report.ignore_paths = statement.ignore_paths;
  return report;
}

}  // namespace

Result<SignReport> Sign(std::string_view model, std::string_view out,
                        const SignOptions& options) {
  return OrNoMemory(
      [&] { return SignModel(std::string(model), std::string(out), options); });
}

}  // namespace haulway
