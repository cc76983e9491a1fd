// Design: three kinds of verifying in one verb. Without a signature, each file
// of a folder is verified by itself, by the checksums of its format; with a
// manifest, the tensors of one checkpoint are compared with a list; with a
// signature, a folder is one model, whose files are compared with what was
// signed. What prints is apart from what compares, so that --json and text
// cannot differ in what they found.

#include "haulway/verify.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "command.h"
#include "haulway/compare.h"
#include "haulway/folder.h"
#include "haulway/open.h"
#include "haulway/signing.h"
#include "output.h"
#include "progress.h"
#include "signature.h"

namespace haulway::cli {
namespace {

struct VerifyVerbOptions : Options {
  bool quiet = false;
  std::string manifest;
  SignatureOptions signature;
};

Result<std::optional<VerifyReport>> VerifyNamed(
    std::shared_ptr<const ByteSource> source, const VerifyOptions& options) {
  HAULWAY_ASSIGN(VerifyReport report, Verify(std::move(source), options));
  return std::optional(std::move(report));
}

// Adds the differences between the checkpoint and the manifest to the report.
Status CompareWithManifest(const VerifyVerbOptions& options,
                           std::shared_ptr<const ByteSource> source,
                           VerifyReport* report) {
  HAULWAY_ASSIGN(const auto written, OpenInput(options.manifest));
  std::string text(written->size(), '\0');
  HAULWAY_TRY(written->ReadAt(0, std::as_writable_bytes(std::span(text))));
  auto expected = ManifestFromJson(text);
  if (!expected.ok()) {
    return std::move(expected).status().Of(ShownName(options.manifest));
  }
  // Avoid a mapping, because bytes read from it stay in memory.
  if (auto unmapped = source->Reopen(IoMode::kPread); unmapped.ok()) {
    source = *std::move(unmapped);
  }
  HAULWAY_ASSIGN(const auto checkpoint,
                 Checkpoint::Open(std::move(source), options.open));
  HAULWAY_ASSIGN(const Manifest found,
                 MakeManifest(*checkpoint, {.threads = options.threads}));
  report->by_manifest = true;
  for (Finding& finding : CompareManifests(*expected, found)) {
    report->ok = false;
    report->findings.push_back(std::move(finding));
  }
  return Status();
}

// Reports a file in a folder that is not a checkpoint: neither right nor wrong.
int PrintNone(const VerifyVerbOptions& options, const std::string& file) {
  if (options.json) {
    Json json;
    json.Begin('{').Key("file").Text(ShownName(file)).Key("ok").Raw("null");
    json.Key("reason").Text("not a checkpoint");
    json.Key("checked_bytes").Number(0);
    for (const char* const key : {"unchecked", "findings", "notes"}) {
      json.Key(key).Begin('[').End(']');
    }
    json.End('}').Print();
  } else if (!options.quiet) {
    fmt::print("-      {}: not a checkpoint\n", Escape(ShownName(file)));
  }
  return kNoMatch;
}

int VerifyOne(const VerifyVerbOptions& options, const std::string& file) {
  Result<std::shared_ptr<const ByteSource>> source = OpenModel(options, file);
  if (!source.ok()) return Fail(options, source.status());
  VerifyOptions verify;
  verify.open = options.open;
  verify.threads = options.threads;
  verify.progress = Progress(file, options.no_progress || options.quiet);
  const auto start = std::chrono::steady_clock::now();
  const bool is_named =
      std::ranges::find(options.files, file) != options.files.end();
  auto result =
      is_named ? VerifyNamed(*source, verify) : VerifyFound(*source, verify);
  if (!result.ok()) return Fail(options, result.status());
  if (!result->has_value()) return PrintNone(options, file);
  (*result)->file = ShownName(file);
  if (!options.manifest.empty() && (*result)->ok) {
    const Status status = CompareWithManifest(options, *source, &**result);
    if (!status.ok()) return Fail(options, status);
  }
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start)
          .count();
  const VerifyReport& report = **result;
  const int exit = report.ok ? kDone : kFound;
  if (options.json) {
    Json().Value(report).Print();
    return exit;
  }
  if (options.quiet && report.ok) return exit;
  uint64_t unchecked = 0, locked = 0, locked_parts = 0;
  for (const Unchecked& range : report.unchecked) {
    (range.needs_key ? locked : unchecked) += range.bytes;
    locked_parts += range.needs_key ? 1 : 0;
  }
  const std::string verdict = OkOrFailed(report.ok);
  const std::string_view compared = report.by_manifest && report.ok
                                        ? "; every tensor matches the manifest"
                                        : "";
  if (report.ok && report.checked_bytes == 0) {
    const std::string without =
        unchecked == 0 || !compared.empty()
            ? ""
            : fmt::format(
                  ": {} without a checksum, where changed values would not be "
                  "detected",
                  Size(unchecked, options.bytes));
    fmt::print("{} {}: structure{}{}{}\n", verdict, Escape(ShownName(file)),
               compared.empty() ? " only" : "", without, compared);
  } else {
    fmt::print(
        "{} {}: {} checked in {:.3f} s ({:.2f} GB/s), {} without a "
        "checksum{}\n",
        verdict, Escape(ShownName(file)),
        Size(report.checked_bytes, options.bytes), seconds,
        static_cast<double>(report.checked_bytes) / 1e9 /
            (seconds > 0 ? seconds : 1),
        Size(unchecked, options.bytes), compared);
  }
  if (!report.authentication.empty()) {
    fmt::print("       authentication of the metadata: {}\n",
               report.authentication);
  }
  if (locked_parts != 0) {
    fmt::print("       not checked without the key: {} part{}, {}\n",
               locked_parts, locked_parts == 1 ? "" : "s",
               Size(locked, options.bytes));
  }
  for (const std::string& note : report.notes) {
    fmt::print("       note: {}\n", Escape(note));
  }
  PrintFindings(report.findings);
  return exit;
}

void PrintSigned(const VerifyVerbOptions& options,
                 const SignatureReport& report, double seconds) {
  if (options.quiet && report.ok) return;
  fmt::print("{} {}: {}, {} compared in {:.3f} s ({:.2f} GB/s)\n",
             OkOrFailed(report.ok), Escape(report.file),
             Counted(report.files, "file"),
             Size(report.checked_bytes, options.bytes), seconds,
             static_cast<double>(report.checked_bytes) / 1e9 /
                 (seconds > 0 ? seconds : 1));
  if (report.signature.has_value()) {
    const SignatureFacts& facts = *report.signature;
    fmt::print("       signed by {} {}{}{}{}{}\n", facts.kind,
               Escape(facts.signer), facts.issuer.empty() ? "" : ", issuer ",
               Escape(facts.issuer), facts.time.empty() ? "" : ", at ",
               facts.time);
  }
  for (const std::string& note : report.notes) {
    fmt::print("       note: {}\n", Escape(note));
  }
  std::vector<Finding> findings;
  for (const SignatureFinding& one : report.findings) {
    findings.push_back({one.code, one.message, std::nullopt});
  }
  PrintFindings(findings);
}

// Verifies a model with its signature.
int VerifySigned(const VerifyVerbOptions& options) {
  if (options.signature.signature.empty()) {
    return FailSigned(options, Status(Code::kInvalidArgument,
                                      "options of a signature need one: "
                                      "expected --signature"));
  }
  if (options.files.size() != 1 || !options.manifest.empty()) {
    return FailSigned(options, Status(Code::kInvalidArgument,
                                      "--signature is of one model: expected "
                                      "one FILE, and no --manifest"));
  }
  const std::string& file = options.files.front();
  VerifySignatureOptions verify;
  verify.source = Sources();
  verify.source.remote = Remote();
  verify.source.signature = options.signature;
  MakeAbsolute(&verify.source.signature.ignore_paths);
  verify.open = options.open;
  verify.threads = options.threads;
  verify.progress = Progress(file, options.no_progress || options.quiet);
  verify.cancel = &interrupted;
  const auto start = std::chrono::steady_clock::now();
  const auto report = VerifySignature(file, verify);
  if (!report.ok()) return FailSigned(options, report.status());
  if (options.json) {
    Json().Value(report.value()).Print();
  } else {
    PrintSigned(
        options, report.value(),
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start)
            .count());
  }
  return report.value().ok ? kDone : kFound;
}

// Returns the folder itself, as one checkpoint.
Result<std::vector<std::string>> AsOne(std::string_view folder,
                                       const RemoteOptions&) {
  return std::vector<std::string>{std::string(folder)};
}

Runner AddVerify(CLI::App& app) {
  const auto options = MakeOptions<VerifyVerbOptions>(app);
  options->may_be_signed = false;  // Only --signature compares one.
  AddBytes(app, *options);
  app.add_flag("-q,--quiet", options->quiet, "Print only failures");
  app.add_option("--manifest", options->manifest,
                 "Compare the tensors with a file that `haulway manifest` "
                 "wrote; a folder then counts as one checkpoint");
  AddAllow(app, *options);
  AddKey(app, *options);
  AddThreads(app, *options);
  AddProgress(app, *options);
  AddFiles(app, *options);
  AddNaming(app, *options);
  AddSignature(app, &options->signature);
  return {options, [options] {
            if (options->signature.wanted()) return VerifySigned(*options);
            const auto one = [&](const std::string& file, bool) {
              return VerifyOne(*options, file);
            };
            return ForEachFile(
                *options, one,
                options->manifest.empty() ? ListFilesToVerify : AsOne);
          }};
}

}  // namespace

extern const Verb kVerify = {
    "verify",
    "Check the structure and every checksum of files; a folder stands for all "
    "its files",
    "haulway verify checkpoints/ --lenient\n"
    "haulway verify model/pytorch_model.bin.index.json\n"
    "haulway verify model.gguf --manifest model.sha256.json\n"
    "haulway verify model/ --signature model/model.sig --public-key key.pub",
    AddVerify};

}  // namespace haulway::cli
