// Design: src/signing/ checks bytes and local files; here names are. The root
// of a signed model is the folder that is opened, or the file itself if it is
// all that was signed, or the folder of the signature: then the file must be
// listed there. Files on servers are reached as OpenSource() reaches them. The
// signature itself, keys and certificates are read without being compared, and
// the structure of checkpoints is checked only in models that were compared.

#include "checkpoint/signed_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "base/no_memory.h"
#include "base/text.h"
#include "checkpoint/folder.h"
#include "haulway/folder.h"
#include "haulway/signing.h"
#include "haulway/verify.h"
#include "signing/bundle.h"
#include "signing/check_signature.h"
#include "signing/compared_model.h"
#include "signing/model_access.h"
#include "signing/statement.h"

namespace haulway {

namespace {

using signing::ComparedModel;
using signing::IgnoredPaths;
using signing::kOneFile;
using signing::ModelAccess;
using signing::ModelEntry;

// Returns the options for files that are not compared.
SourceOptions Plain(const SourceOptions& options) {
  SourceOptions plain = options;
  plain.io = IoMode::kPread;
  plain.signature = {};
  plain.signed_model = nullptr;
  plain.variant.clear();
  return plain;
}

Result<std::string> ReadText(const std::string& name,
                             const SourceOptions& options) {
  HAULWAY_ASSIGN(const auto source, OpenSource(name, Plain(options)));
  if (source->size() > signing::kMostBundleBytes) {
    return Status(Code::kLimit,
                  fmt::format("it has {} bytes: expected at most {}",
                              source->size(), signing::kMostBundleBytes))
        .Of(ShownName(name));
  }
  std::string text(source->size(), '\0');
  HAULWAY_TRY(source->ReadAt(0, std::as_writable_bytes(std::span(text))));
  return text;
}

// Returns a name without its last part, with the '/' at its end.
std::string FolderBefore(std::string_view uri) {
  const size_t slash = uri.substr(0, uri.find_first_of("?#")).rfind('/');
  return slash == uri.npos ? "./" : std::string(uri.substr(0, slash + 1));
}

// The files of a model on a server.
class RemoteModel : public ModelAccess {
 public:
  RemoteModel(std::string uri, bool is_file, SourceOptions options)
      : uri_(std::move(uri)), is_file_(is_file), options_(std::move(options)) {}

  bool is_file() const override { return is_file_; }

  Result<std::optional<std::vector<ModelEntry>>> List(
      const IgnoredPaths& ignored) const override {
    std::optional<std::vector<ModelEntry>> entries;
    if (is_file_ || !HasFolders(uri_)) return entries;
    HAULWAY_ASSIGN(const auto files, ListSizes(uri_, options_.remote));
    entries.emplace();
    for (const ListedFile& file : files) {
      auto name = NameOf(file.name);
      if (!name.has_value() || ignored.Has(*name)) continue;
      entries->push_back(
          {std::move(*name), ModelEntry::Kind::kFile, file.bytes});
    }
    return entries;
  }

  Result<std::shared_ptr<const ByteSource>> Open(
      std::string_view name) const override {
    return OpenSource(is_file_ ? uri_ : fmt::format("{}{}", uri_, name),
                      options_);
  }

  std::optional<std::string> NameOf(std::string_view uri) const override {
    if (is_file_) {
      if (uri != uri_) return std::nullopt;
      return std::string(kOneFile);
    }
    uri = uri.substr(0, uri.find_first_of("?#"));
    if (!uri.starts_with(uri_)) return std::nullopt;
    return std::string(uri.substr(uri_.size()));
  }

 private:
  const std::string uri_;  // A folder's ends with '/'.
  const bool is_file_;
  const SourceOptions options_;
};

struct Opened {
  std::shared_ptr<ComparedModel> model;
  std::optional<std::string> signature;  // Its name in the model.
};

// Returns the folder that contains another, with the '/' at its end, or "" if
// a URL has none.
std::string FolderAround(std::string_view folder) {
  if (const auto path = LocalPath(folder)) {
    std::error_code error;
    auto full = std::filesystem::absolute(*path, error).lexically_normal();
    if (!full.has_filename()) full = full.parent_path();
    return (full.parent_path() / "").native();
  }
  while (folder.ends_with('/')) folder.remove_suffix(1);
  std::string around = FolderBefore(folder);
  return around.ends_with("://") ? "" : around;
}

constexpr std::string_view kUsualName = "model.sig";

// Where the signature of a model is if the caller does not say.
std::vector<std::string> UsualSignatures(std::string_view uri) {
  if (IsFolder(uri)) {
    return {
        fmt::format("{}{}{}", uri, uri.ends_with('/') ? "" : "/", kUsualName)};
  }
  return {fmt::format("{}.sig", uri.substr(0, uri.find_first_of("?#"))),
          fmt::format("{}{}", FolderBefore(uri), kUsualName)};
}

Status NotSigned(std::string_view uri) {
  return Status(Code::kSignature,
                fmt::format("the model is not signed, and a signature is "
                            "required: expected {}; 'signature' names another",
                            Quote(ShownName(UsualSignatures(uri).front()))))
      .Of(ShownName(uri));
}

struct SignatureText {
  std::string name;
  std::string text;
  bool is_around = false;  // It signs the pipeline around the model.
};

Result<SignatureText> FindSignature(std::string_view uri,
                                    const SourceOptions& options) {
  const std::string& given = options.signature.signature;
  if (!given.empty()) {
    HAULWAY_ASSIGN(std::string text, ReadText(given, options));
    return SignatureText{given, std::move(text), false};
  }
  std::vector<std::string> names = UsualSignatures(uri);
  const size_t own = names.size();
  const std::string around =
      FolderAround(IsFolder(uri) ? std::string(uri) : FolderBefore(uri));
  if (!around.empty()) names.push_back(fmt::format("{}{}", around, kUsualName));
  for (size_t i = 0; i < names.size(); ++i) {
    auto text = ReadText(names[i], options);
    if (text.ok()) {
      return SignatureText{names[i], *std::move(text), /*is_around=*/i == own};
    }
    if (text.status().code() != Code::kNotFound) return text.status();
  }
  return NotSigned(uri);
}

// Returns whether a statement lists files of `uri`, as one in `root` names
// them.
bool ListsPart(const signing::Statement& statement, const std::string& root,
               std::string_view uri) {
  std::optional<std::string> name;
  const auto path = LocalPath(uri), local_root = LocalPath(root);
  if (path.has_value() && local_root.has_value()) {
    name = signing::NameWithin(*local_root, *path);
  } else if (!path.has_value() && uri.starts_with(root)) {
    name = uri.substr(root.size());
  }
  if (!name.has_value() || name->empty() || *name == kOneFile) return false;
  if (IsFolder(uri) && !name->ends_with('/')) *name += '/';
  return std::ranges::any_of(statement.resources, [&](const auto& one) {
    return one.name == *name ||
           (name->ends_with('/') && one.name.starts_with(*name));
  });
}

Result<std::unique_ptr<ModelAccess>> AccessModel(
    std::string_view uri, const std::string& signature,
    const signing::Statement& statement, const SourceOptions& options) {
  const bool is_one_file = statement.is_one_file();
  const bool is_folder = IsFolder(uri);
  const auto path = LocalPath(uri);
  const std::string around = FolderBefore(signature);
  if (is_folder && ListsPart(statement, around, uri)) {
    return AccessModel(around, signature, statement, options);
  }
  if (path.has_value()) {
    std::error_code error;
    if (is_folder || is_one_file || !std::filesystem::exists(*path, error)) {
      return signing::AccessLocalModel(*path);
    }
    const auto own = LocalPath(signature);
    if (!own.has_value()) {
      return Status(Code::kMismatch,
                    "the signature is of a folder, and this is a file: "
                    "expected a signature in the folder of the model")
          .Of(ShownName(uri));
    }
    return signing::AccessLocalModel(FolderBefore(*own));
  }
  if (uri.find("://") == uri.npos || uri.starts_with("hf://")) {
    return Status(Code::kUnsupported,
                  "a signature is of files: expected a path, s3:// or http(s)")
        .Of(ShownName(uri));
  }
  if (!is_folder && uri.substr(0, uri.find_first_of("?#")).ends_with('/')) {
    return Status(
               Code::kUnsupported,
               "servers list no folders: expected the URL of a file, such as "
               "that of model.safetensors.index.json")
        .Of(ShownName(uri));
  }
  std::string root(uri);
  if (is_folder && !root.ends_with('/')) root += '/';
  if (!is_folder && !is_one_file) root = FolderBefore(signature);
  return std::unique_ptr<ModelAccess>(std::make_unique<RemoteModel>(
      std::move(root), !is_folder && is_one_file, Plain(options)));
}

Result<Opened> OpenCompared(std::string_view uri,
                            const SourceOptions& options) {
  const SignatureOptions& asked = options.signature;
  if (asked.require_signature && asked.signature.empty() &&
      !asked.has_verifier()) {
    return Status(Code::kSignature,
                  "a signature is required, and nothing says who must have "
                  "signed: expected a public key, a certificate chain, or an "
                  "identity with its issuer and a trusted root")
        .Of(ShownName(uri));
  }
  const auto read = [&](const std::string& name) {
    return ReadText(name, options);
  };
  HAULWAY_ASSIGN(const signing::Verifier verifier,
                 signing::MakeVerifier(asked, read));
  HAULWAY_ASSIGN(const SignatureText found, FindSignature(uri, options));
  auto checked = signing::CheckSignature(found.text, verifier);
  if (!checked.ok()) {
    return std::move(checked).status().Of(ShownName(found.name));
  }
  const signing::Statement& statement = checked->statement;
  if (found.is_around && !ListsPart(statement, FolderBefore(found.name), uri)) {
    return NotSigned(uri);
  }
  HAULWAY_ASSIGN(auto access, AccessModel(uri, found.name, statement, options));
  Opened opened;
  opened.signature = access->NameOf(found.name);
  opened.model = std::make_shared<ComparedModel>(std::move(checked).value(),
                                                 std::move(access), asked);
  return opened;
}

// The faults that verifying reports; others end it.
bool IsFinding(Code code) {
  return code == Code::kSignature || code == Code::kMismatch ||
         code == Code::kCorrupt || code == Code::kLimit;
}

// Checks the structure of the checkpoints in the model.
Status CheckStructure(std::string_view uri, const ComparedModel& model,
                      const VerifySignatureOptions& options,
                      SignatureReport* report) {
  const SourceOptions plain = Plain(options.source);
  std::vector<std::string> files = {std::string(uri)};
  const bool has_folder = !model.access().is_file() && IsFolder(uri);
  if (has_folder) {
    if (!HasFolders(uri)) return Status();
    HAULWAY_ASSIGN(files, ListFilesToVerify(uri, plain.remote));
  }
  for (const std::string& file : files) {
    auto name = model.access().NameOf(file);
    if (!name.has_value() || !model.Lists(*name)) continue;
    HAULWAY_ASSIGN(auto source, OpenSource(file, plain));
    VerifyOptions verify{.open = options.open, .threads = options.threads};
    verify.cancel = options.cancel;
    auto verified = VerifyFound(std::move(source), verify);
    if (verified.status().code() == Code::kUnsupported) {
      report->notes.push_back(
          fmt::format("{} is not a checkpoint", Quote(*name)));
      continue;
    }
    HAULWAY_ASSIGN(const auto found, std::move(verified));
    if (!found.has_value()) continue;
    for (const Finding& one : found->findings) {
      report->findings.push_back({one.code, one.message, *name});
    }
    report->notes.insert(report->notes.end(), found->notes.begin(),
                         found->notes.end());
  }
  return Status();
}

Result<SignatureReport> Verified(std::string_view uri,
                                 const VerifySignatureOptions& options) {
  SignatureReport report;
  report.file = ShownName(uri);
  auto opened = OpenCompared(uri, options.source);
  if (!opened.ok()) {
    const Status status = opened.status();
    if (!IsFinding(status.code())) return status;
    report.ok = false;
    report.findings.push_back(
        {status.code(), std::string(status.message()), ""});
    return report;
  }
  ComparedModel& model = *opened->model;
  report.signature = model.facts();
  HAULWAY_ASSIGN(report.findings, model.CompareNames(opened->signature));
  if (!model.access().is_file() && !IsFolder(uri)) {
    const auto name = model.access().NameOf(uri);
    if (!name.has_value() || !model.Lists(*name)) {
      report.findings.push_back(
          {Code::kMismatch,
           "the signature is of a folder, and does not list this file",
           std::string(kOneFile)});
    }
  }
  std::vector<std::string> without;
  for (const SignatureFinding& one : report.findings) {
    without.push_back(one.file);
  }
  signing::DigestOptions digest{.threads = options.threads,
                                .cancel = options.cancel,
                                .progress = nullptr};
  HAULWAY_ASSIGN(auto compared,
                 model.CompareContent(without, digest, options.progress));
  report.files = compared.files;
  report.checked_bytes = compared.bytes;
  std::ranges::move(compared.findings, std::back_inserter(report.findings));
  report.notes = model.notes();
  if (report.findings.empty()) {
    HAULWAY_TRY(CheckStructure(uri, model, options, &report));
  }
  report.ok = report.findings.empty();
  return report;
}

}  // namespace

Result<std::shared_ptr<SignedModel>> OpenSignedModel(
    std::string_view model, const SourceOptions& options) {
  return OrNoMemory([&]() -> Result<std::shared_ptr<SignedModel>> {
    if (options.write_through) {
      return Status(Code::kInvalidArgument,
                    "a signed model is not written to: expected no shared "
                    "mapping")
          .Of(ShownName(model));
    }
    HAULWAY_ASSIGN(const Opened opened, OpenCompared(model, options));
    HAULWAY_ASSIGN(const auto findings,
                   opened.model->CompareNames(opened.signature));
    Status status = signing::StatusOf(findings);
    if (!status.ok()) return std::move(status).Of(ShownName(model));
    return std::shared_ptr<SignedModel>(opened.model);
  });
}

Result<SignatureReport> VerifySignature(std::string_view model,
                                        const VerifySignatureOptions& options) {
  return OrNoMemory([&] { return Verified(model, options); });
}

Result<SourceOptions> WithSignedModel(std::string_view uri,
                                      const SourceOptions& options) {
  SourceOptions with = options;
  if (with.signed_model == nullptr && with.signature.wanted()) {
    HAULWAY_ASSIGN(with.signed_model, OpenSignedModel(uri, options));
  }
  // Sources that are compared are read once, into memory.
  if (with.signed_model != nullptr && with.io == IoMode::kMmap) {
    with.io = IoMode::kPread;
  }
  return with;
}

Result<std::shared_ptr<const ByteSource>> ComparedWithSignature(
    std::shared_ptr<const ByteSource> source, std::string_view uri,
    const SourceOptions& options) {
  if (options.signed_model == nullptr) return source;
  return static_cast<ComparedModel*>(options.signed_model.get())
      ->Wrap(std::move(source), uri);
}

std::shared_ptr<const void> BeginParsingOf(const SourceOptions& options) {
  if (options.signed_model == nullptr) return nullptr;
  return static_cast<ComparedModel*>(options.signed_model.get())
      ->BeginParsing();
}

}  // namespace haulway
