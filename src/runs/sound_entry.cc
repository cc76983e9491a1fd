// Design: with a manifest, digests say all. Without one, each file is checked
// by the rules of its format. There a file without any signature is the hard
// case: a power cut leaves zeros under the right name and with the right size,
// so a name that promises a checkpoint is believed only if the file begins as
// one. Files of other names may be anything. The parts of a checkpoint in
// several files are checked together, as their folder, but each by its own
// signature.

#include "runs/sound_entry.h"

#include <fmt/format.h>
#include <simdjson.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <iterator>
#include <memory>
#include <utility>
#include <vector>

#include "base/json_text.h"
#include "base/sha256.h"
#include "base/text.h"
#include "base/thread_pool.h"
#include "checkpoint/choose_model.h"
#include "checkpoint/format_registry.h"
#include "haulway/checkpoint.h"
#include "haulway/folder.h"
#include "haulway/format.h"
#include "haulway/machine.h"
#include "haulway/verify.h"
#include "io/model_names.h"

namespace haulway {

namespace {

constexpr uint64_t kMostJsonBytes = 64 * kMiB;
constexpr size_t kDigestBytes = 4 * kMiB;

Status OfFile(Status status, std::string_view name) {
  if (status.ok()) return status;
  return Status(status.code(),
                fmt::format("{}: {}", Quote(name), status.message()));
}

// Returns the name within the entry.
std::string_view Within(const FoundEntry& entry, std::string_view name) {
  if (name.size() <= entry.name.size()) return LastPart(name);
  return name.substr(entry.name.size() + 1);
}

bool IsPickleName(std::string_view name) { return name.ends_with(".pkl"); }

// Returns whether the bytes begin with a pickle's protocol, 2 or newer, and end
// with its STOP.
Result<bool> LooksLikePickle(const ByteSource& source) {
  constexpr std::byte kProto{0x80}, kStop{'.'}, kNewest{5};
  constexpr uint64_t kLeastBytes = 4;  // The protocol, an object, STOP.
  if (source.size() < kLeastBytes) return false;
  std::array<std::byte, 2> head{};
  std::array<std::byte, 1> end{};
  HAULWAY_TRY(source.ReadAt(0, head));
  HAULWAY_TRY(source.ReadAt(source.size() - 1, end));
  return head[0] == kProto && head[1] >= std::byte{2} && head[1] <= kNewest &&
         end[0] == kStop;
}

// Returns why a file is none of those that its name says: a power cut leaves
// zeros.
Status CheckSignature(const RunFolder& run, const std::string& name,
                      const ByteSource& source) {
  const RunFile* const file = run.Find(name);
  const bool is_file = file != nullptr && !file->is_folder;
  if (!is_file || (FormatBySuffix(name) == nullptr && !IsPickleName(name))) {
    return Status();
  }
  const Status found = DetectFormat(source, Strictness::kLenient).status();
  if (found.code() != Code::kUnsupported) return found;
  HAULWAY_ASSIGN(const bool is_pickle, LooksLikePickle(source));
  if (is_pickle) return Status();
  return Status(Code::kCorrupt,
                "neither a checkpoint of a known format nor a pickle");
}

// Returns what is damaged in a file, in which everything is checked.
Status VerifyFile(std::shared_ptr<const ByteSource> source,
                  std::string_view name, const RunOptions& options) {
  VerifyOptions verify;
  verify.threads = 1;
  verify.cancel = options.cancel;
  verify.open.strictness = Strictness::kLenient;
  std::optional<VerifyReport> report;
  std::array<std::byte, 4> head{};
  constexpr std::array kZip = {std::byte('P'), std::byte('K'), std::byte(3),
                               std::byte(4)};
  if (IsPickleName(name) && source->size() >= head.size() &&
      source->ReadAt(0, head).ok() && head == kZip) {
    HAULWAY_ASSIGN(report, Verify(std::move(source), verify));
  } else {
    HAULWAY_ASSIGN(report, VerifyFound(std::move(source), verify));
  }
  if (!report.has_value()) return Status();
  for (const Finding& finding : report->findings) {
    Status status(finding.code, finding.message);
    if (IsDamage(status)) return status;
  }
  return Status();
}

// Returns what is damaged in a file as far as opening it shows; with `alone`,
// without the other parts of a checkpoint.
Status OpenFile(std::shared_ptr<const ByteSource> source, bool alone) {
  OpenOptions open;
  open.strictness = Strictness::kLenient;
  open.alone = alone;
  return Checkpoint::Open(std::move(source), open).status();
}

// Returns what is damaged in a part of a checkpoint, whose bytes are checked
// with its folder.
Status CheckPart(const RunFolder& run, const std::string& name) {
  HAULWAY_ASSIGN(auto source, run.Open(name));
  HAULWAY_TRY(CheckSignature(run, name, *source));
  return OpenFile(std::move(source), /*alone=*/true);
}

// Returns what is damaged in a file, or in a folder that is opened as one.
Status CheckFile(const RunFolder& run, const std::string& name,
                 const RunOptions& options) {
  HAULWAY_ASSIGN(auto source, run.Open(name));
  HAULWAY_TRY(CheckSignature(run, name, *source));
  return options.digests ? VerifyFile(std::move(source), name, options)
                         : OpenFile(std::move(source), /*alone=*/false);
}

}  // namespace

bool IsDamage(const Status& status) {
  switch (status.code()) {
    case Code::kNotFound:
    case Code::kIoError:
    case Code::kTruncated:
    case Code::kCorrupt:
    case Code::kMismatch:
    case Code::kLimit:
      return true;
    default:
      return false;
  }
}

int ThreadsOf(const RunOptions& options) {
  return options.threads != 0 ? options.threads : UsableCpus();
}

Result<std::string> ReadJson(const RunFolder& run, const std::string& name) {
  HAULWAY_ASSIGN(std::string json, run.Read(name, kMostJsonBytes));
  ReplaceNumbers(&json);
  simdjson::dom::parser parser;
  if (json.empty() || parser.parse(json).error() != simdjson::SUCCESS) {
    return Status(Code::kCorrupt,
                  fmt::format("{} is not JSON", Quote(LastPart(name))));
  }
  return json;
}

Result<std::optional<RunManifest>> ManifestOf(const RunFolder& run,
                                              const FoundEntry& entry) {
  const std::string name = fmt::format("{}/{}", entry.name, kRunManifestName);
  if (run.Find(name) == nullptr) return std::optional<RunManifest>();
  HAULWAY_ASSIGN(const std::string json, run.Read(name, kMostManifestBytes));
  HAULWAY_ASSIGN(RunManifest manifest, ParseRunManifest(json));
  if (entry.step.has_value() && manifest.step != *entry.step) {
    return Status(
        Code::kMismatch,
        fmt::format("{} is of step {}", kRunManifestName, manifest.step));
  }
  return std::optional<RunManifest>(std::move(manifest));
}

Result<Sha256Value> DigestOfFile(const ByteSource& source,
                                 const std::atomic<bool>* cancel) {
  std::vector<std::byte> piece(std::min<uint64_t>(kDigestBytes, source.size()));
  Sha256 digest;
  for (uint64_t at = 0; at < source.size(); at += piece.size()) {
    if (cancel != nullptr && cancel->load()) {
      return Status(Code::kCancelled, "cancelled");
    }
    const auto part = std::span(piece).first(
        std::min<uint64_t>(piece.size(), source.size() - at));
    HAULWAY_TRY(source.ReadAt(at, part));
    digest.Update(part);
  }
  return digest.Finish();
}

Status CheckByManifest(const RunFolder& run, const FoundEntry& entry,
                       const RunManifest& manifest, const RunOptions& options) {
  const std::string folder =
      manifest.save.empty() ? entry.name
                            : fmt::format("{}/{}", entry.name, manifest.save);
  const auto full = [&](const ManifestFile& file) {
    return fmt::format("{}/{}", folder, file.name);
  };
  for (const ManifestFile& file : manifest.files) {
    const RunFile* const found = run.Find(full(file));
    if (found == nullptr) return Lacks(Quote(file.name));
    if (found->is_other || found->is_folder) {
      return Status(Code::kCorrupt,
                    fmt::format("{} is not a file", Quote(file.name)));
    }
    if (found->bytes == file.bytes) continue;
    return Status(found->bytes < file.bytes ? Code::kTruncated : Code::kCorrupt,
                  fmt::format("{} has {} bytes: expected {}", Quote(file.name),
                              found->bytes, file.bytes));
  }
  if (!options.digests) return Status();
  return ParallelFor(
      manifest.files.size(), ThreadsOf(options), [&](uint64_t i) -> Status {
        const ManifestFile& file = manifest.files[i];
        const auto source = run.Open(full(file));
        if (!source.ok()) return OfFile(source.status(), file.name);
        const auto digest = DigestOfFile(**source, options.cancel);
        if (!digest.ok()) return OfFile(digest.status(), file.name);
        if (*digest == file.sha256) return Status();
        return Status(Code::kMismatch,
                      fmt::format("{} does not have the digest of {}",
                                  Quote(file.name), kRunManifestName));
      });
}

Status CheckSound(const RunFolder& run, const FoundEntry& entry,
                  const RunOptions& options) {
  FolderFiles parts(run.remote());
  std::vector<std::string> names;
  const auto note = [&](const RunFile& file) -> Status {
    const std::string_view within = Within(entry, file.name);
    if (file.is_other) {
      return Status(Code::kCorrupt,
                    fmt::format("{} is not a file", Quote(within)));
    }
    // A rank without a part of the checkpoint writes an empty data file.
    if (file.bytes == 0 && !file.name.ends_with(kDataFileSuffix)) {
      return Status(Code::kTruncated,
                    fmt::format("{} is empty", Quote(within)));
    }
    if (file.name.ends_with(".json")) {
      HAULWAY_TRY(ReadJson(run, file.name).status());
    }
    names.push_back(file.name);
    parts.Note(file.name);
    return Status();
  };
  if (const RunFile* const file = run.Find(entry.name);
      file != nullptr && !file->is_folder) {
    HAULWAY_TRY(note(*file));
  }
  for (const RunFile& file : run.Below(entry.name)) {
    if (!file.is_folder) HAULWAY_TRY(note(file));
  }
  std::vector<std::string> in_folders;
  std::erase_if(names, [&](const std::string& name) {
    const std::string_view last = LastPart(name);
    const bool is_opened =
        (OpensDirectory(last) || FormatBySuffix(last) != nullptr ||
         IsPickleName(last)) &&
        !IsIndexName(last);
    const bool is_part = parts.IsPart(name);
    if (is_part && FormatBySuffix(last) != nullptr) in_folders.push_back(name);
    return is_part || !(options.digests || is_opened);
  });
  std::ranges::copy(parts.Folders(), std::back_inserter(names));
  const size_t count = names.size();
  std::ranges::move(in_folders, std::back_inserter(names));
  return ParallelFor(names.size(), ThreadsOf(options), [&](uint64_t i) {
    Status status = i < count ? CheckFile(run, names[i], options)
                              : CheckPart(run, names[i]);
    // Not checked, but not damaged either.
    if (status.code() == Code::kUnsafe || status.code() == Code::kUnsupported ||
        status.code() == Code::kInvalidArgument ||
        (status.code() == Code::kAuth && run.is_local())) {
      return Status();
    }
    return OfFile(std::move(status), Within(entry, names[i]));
  });
}

}  // namespace haulway
