// Design: a file is read into memory of its own, in the pass that digests it,
// and every byte that a caller gets comes from there; so nothing can change
// between the two. What an index was parsed of, before that, is remembered by
// its SHA-256, and compared with the same bytes in memory. Left out: mapping
// the file, since another program may change a mapping; reading into the
// caller's memory, which is handed out before the digest of the rest is known.

#include "signing/compared_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <ranges>
#include <set>
#include <utility>

#include "base/no_memory.h"
#include "base/text.h"
#include "signing/compared_source.h"

namespace haulway::signing {

namespace {

// Files that are not open yet and are compared together.
constexpr size_t kFilesAtOnce = 128;

bool Overlaps(const ComparedFile::Unit& unit, const ByteRange& range) {
  return range.length > 0 && unit.begin < range.offset + range.length &&
         range.offset < unit.end;
}

Status ChangedMeanwhile() {
  return Status(Code::kMismatch,
                "the file differs from what was read when it was opened: "
                "another program changed it");
}

SignatureFinding FindingOf(std::string message, std::string_view file) {
  return {Code::kMismatch, std::move(message), std::string(file)};
}

}  // namespace

Status StatusOf(std::span<const SignatureFinding> findings) {
  if (findings.empty()) return Status();
  constexpr size_t kMostNamed = 8;
  std::string text = findings.front().message;
  for (size_t i = 1; i < std::min(findings.size(), kMostNamed); ++i) {
    text += fmt::format("{}{}", i == 1 ? "; also " : ", ",
                        findings[i].file.empty() ? findings[i].message
                                                 : Quote(findings[i].file));
  }
  if (findings.size() > kMostNamed) {
    text += fmt::format(" and {} more", findings.size() - kMostNamed);
  }
  return Status(findings.front().code, text);
}

ComparedFile::ComparedFile(ComparedModel* model, std::string name, size_t first,
                           size_t count)
    : model_(model), name_(std::move(name)), first_(first), count_(count) {}

ComparedModel::ComparedModel(CheckedSignature checked,
                             std::unique_ptr<ModelAccess> access,
                             const SignatureOptions& options)
    : checked_(std::move(checked)),
      access_(std::move(access)),
      options_(options) {
  const auto& resources = statement().resources;
  for (size_t first = 0, next = 0; first < resources.size(); first = next) {
    const std::string& name = resources[first].name;
    while (next < resources.size() && resources[next].name == name) ++next;
    files_.push_back(
        std::make_unique<ComparedFile>(this, name, first, next - first));
  }
}

ComparedFile* ComparedModel::Find(std::string_view name) const {
  const auto at = std::ranges::lower_bound(
      files_, name, IsBefore,
      [](const auto& file) -> std::string_view { return file->name(); });
  if (at == files_.end() || (*at)->name() != name) return nullptr;
  return at->get();
}

bool ComparedModel::Lists(std::string_view name) const {
  if (!name.ends_with('/')) return Find(name) != nullptr;
  return std::ranges::any_of(
      files_, [&](const auto& file) { return file->name().starts_with(name); });
}

Result<std::vector<SignatureFinding>> ComparedModel::CompareNames(
    const std::optional<std::string>& signature) {
  IgnoredPaths ignored;
  for (const std::string& path : statement().ignore_paths) ignored.Add(path);
  for (const std::string& path : options_.ignore_paths) {
    AddIgnored(*access_, path, &ignored);
  }
  if (signature.has_value() && *signature != kOneFile) ignored.Add(*signature);
  const bool lists_git = std::ranges::any_of(kGitPaths, [&](auto git) {
    return std::ranges::any_of(files_, [&](const auto& file) {
      const std::string& name = file->name();
      return name == git || name.starts_with(std::string(git) + "/");
    });
  });
  if (options_.ignore_git_paths && !lists_git) {
    for (const std::string_view path : kGitPaths) ignored.Add(path);
  }
  if (ignored.Has(kOneFile) && !access_->is_file()) {
    checked_.notes.push_back(
        "the signature leaves out the whole folder, and so says nothing of any "
        "file");
  }
  std::vector<SignatureFinding> findings;
  if (statement().is_one_file() != access_->is_file()) {
    findings.push_back(FindingOf(
        access_->is_file() ? "the signature is of a folder, and this is a file"
                           : "the signature is of one file, and this is a "
                             "folder",
        kOneFile));
    return findings;
  }
  HAULWAY_ASSIGN(const auto listed, access_->List(ignored));
  if (!listed.has_value()) {
    checked_.notes.push_back(
        "the server lists no folders: files that the signature does not list "
        "cannot be seen");
    return findings;
  }
  std::map<std::string_view, const ModelEntry*> present;
  for (const ModelEntry& entry : *listed) {
    present.emplace(entry.name, &entry);
    listed_bytes_ += entry.bytes;
  }
  const bool may_link = statement().allow_symlinks || options_.allow_symlinks;
  using Kind = ModelEntry::Kind;
  for (const auto& file : files_) {
    const auto at = present.find(file->name());
    if (at == present.end()) {
      findings.push_back(
          FindingOf(fmt::format("{} is missing: the signature lists it",
                                Quote(file->name())),
                    file->name()));
      continue;
    }
    const Resource& last =
        statement().resources[file->first_ + file->count_ - 1];
    const ModelEntry& entry = *at->second;
    const bool is_file = entry.kind == Kind::kFile || entry.kind == Kind::kLink;
    if (is_file && statement().has_pieces && entry.bytes != last.end) {
      findings.push_back(FindingOf(
          fmt::format("{} has another size: expected {} bytes, found {}",
                      Quote(file->name()), last.end, entry.bytes),
          file->name()));
    }
  }
  for (const ModelEntry& entry : *listed) {
    const bool is_listed = Find(entry.name) != nullptr;
    // Nothing can be signed of an empty file in pieces.
    const bool is_nothing =
        statement().has_pieces && entry.bytes == 0 && entry.kind == Kind::kFile;
    if (!is_listed && (options_.ignore_unsigned_files || is_nothing)) continue;
    std::string why;
    if (entry.kind == Kind::kSpecial) why = "is no regular file";
    if (entry.kind == Kind::kBrokenLink) why = "is a link to nothing";
    if (entry.kind == Kind::kLinkToFolder) why = "is a link to a folder";
    if (entry.kind == Kind::kLink && !may_link) {
      why = "is a symbolic link: the option allow_symlinks follows it";
    }
    if (why.empty() && !is_listed) {
      why = "is not signed: the signature does not list it";
    }
    if (why.empty()) continue;
    findings.push_back(
        FindingOf(fmt::format("{} {}", Quote(entry.name), why), entry.name));
  }
  return findings;
}

std::vector<ComparedFile::Unit> ComparedModel::UnitsOf(
    const ComparedFile& file) const {
  if (!statement().has_pieces) {
    return {{0, file.source_->size(), file.first_}};
  }
  std::vector<ComparedFile::Unit> units;
  for (size_t i = 0; i < file.count_; ++i) {
    const Resource& piece = statement().resources[file.first_ + i];
    units.push_back({piece.begin, piece.end, file.first_ + i});
  }
  return units;
}

bool ComparedModel::HasCompared(const ComparedFile::Held& held,
                                const ByteRange& range) const {
  if (!statement().has_pieces) return held.compared.front();
  // Pieces have one size, but the last (statement.cc).
  const uint64_t size = statement().piece_bytes;
  const uint64_t end = range.offset + range.length;
  for (uint64_t u = range.offset / size; u * size < end; ++u) {
    if (!held.compared[u]) return false;
  }
  return true;
}

Status ComparedModel::Differs(const ComparedFile& file,
                              const Resource& resource,
                              const DigestJob& job) const {
  if (!job.status.ok() && job.status.code() != Code::kTruncated) {
    return job.status;
  }
  const std::string place =
      statement().has_pieces
          ? fmt::format("{}, bytes {} to {},", Quote(file.name_),
                        resource.begin, resource.end)
          : Quote(file.name_);
  if (!job.status.ok()) {
    return Status(Code::kMismatch,
                  fmt::format("{} became shorter while it was read", place));
  }
  if (job.digest == resource.digest) return Status();
  return Status(
      Code::kMismatch,
      fmt::format("{} differs from what was signed: expected the {} {}, found "
                  "{}",
                  place, WordOf(statement().hash),
                  Hex(std::as_bytes(std::span(resource.digest))),
                  Hex(std::as_bytes(std::span(job.digest)))));
}

Status ComparedModel::CheckParsed(ComparedFile* file,
                                  const ComparedFile::Held& held) const {
  const auto bytes = held.memory.buffer().bytes();
  for (const ComparedFile::Parsed& parsed : file->parsed_) {
    const auto now = bytes.subspan(parsed.offset, parsed.length);
    const std::string_view text(reinterpret_cast<const char*>(now.data()),
                                now.size());
    if (Sha256Of(text) != parsed.digest) return ChangedMeanwhile();
  }
  file->parsed_.clear();
  return Status();
}

struct ComparedModel::Task {
  ComparedFile* file = nullptr;
  std::shared_ptr<ComparedFile::Held> held;  // Null: nothing is kept.
  std::vector<std::pair<size_t, ComparedFile::Unit>> units;  // By number.
  size_t first_job = 0;
  bool closes = false;  // The file was opened for this task alone.
};

// Opens the file, and finds out what of it is to be compared. Requires: the
// file's mutex is held.
Status ComparedModel::Prepare(const Wanted& wanted, Task* task) {
  ComparedFile& file = *wanted.file;
  HAULWAY_TRY(file.failure_);
  if (file.source_ == nullptr) {
    HAULWAY_ASSIGN(file.source_, access_->Open(file.name_));
    task->closes = !wanted.keeps;
  }
  const auto units = UnitsOf(file);
  const uint64_t size = file.source_->size();
  if (statement().has_pieces && units.back().end != size) {
    return Status(Code::kMismatch,
                  fmt::format("{} has another size: expected {} bytes, found "
                              "{}",
                              Quote(file.name_), units.back().end, size));
  }
  task->file = &file;
  if (wanted.keeps) {
    task->held = file.last_held_.lock();
    if (task->held == nullptr) {
      HAULWAY_ASSIGN(FreshMemory memory,
                     FreshMemory::Allocate(std::max<uint64_t>(size, 1)));
      task->held =
          std::make_shared<ComparedFile::Held>(std::move(memory), units.size());
      file.last_held_ = task->held;
    }
  }
  for (size_t u = 0; u < units.size(); ++u) {
    const auto is_in = [&](const ByteRange& range) {
      return Overlaps(units[u], range);
    };
    const bool is_wanted =
        wanted.is_whole || units[u].begin == units[u].end ||
        std::ranges::any_of(wanted.ranges, is_in) ||
        std::ranges::any_of(file.parsed_, [&](const auto& parsed) {
          return is_in({parsed.offset, parsed.length});
        });
    const bool is_done = task->held != nullptr && task->held->compared[u];
    if (is_wanted && !is_done) task->units.emplace_back(u, units[u]);
  }
  return Status();
}

// Reads and compares. Returns the findings by file; failures other than
// kMismatch end it.
Result<std::vector<SignatureFinding>> ComparedModel::Run(
    std::span<const Wanted> wanted, const DigestOptions& options,
    uint64_t* bytes) {
  // In the order of files, so that no two threads wait for one another.
  std::vector<const Wanted*> order;
  for (const Wanted& one : wanted) order.push_back(&one);
  std::ranges::sort(order, {},
                    [](const Wanted* one) { return one->file->first_; });
  std::vector<std::unique_lock<std::mutex>> locks;
  std::vector<Task> tasks;
  std::vector<DigestJob> jobs;
  std::vector<SignatureFinding> findings;
  const auto note = [&](Status status, ComparedFile* file) -> Status {
    if (status.code() == Code::kMismatch || status.code() == Code::kNotFound) {
      findings.push_back(FindingOf(std::string(status.message()), file->name_));
      return Status();
    }
    return status;
  };
  for (const Wanted* const one : order) {
    locks.emplace_back(one->file->mutex_);
    Task task;
    if (Status status = Prepare(*one, &task); !status.ok()) {
      HAULWAY_TRY(note(std::move(status), one->file));
      continue;
    }
    task.first_job = jobs.size();
    for (const auto& [number, unit] : task.units) {
      jobs.push_back(
          {.source = one->file->source_.get(),
           .offset = unit.begin,
           .length = unit.end - unit.begin,
           .hash = statement().hash,
           .memory = task.held == nullptr ? nullptr : &task.held->memory});
    }
    tasks.push_back(std::move(task));
  }
  HAULWAY_TRY(DigestAll(jobs, options));
  for (Task& task : tasks) {
    Status status;
    for (size_t i = 0; i < task.units.size() && status.ok(); ++i) {
      const auto& [number, unit] = task.units[i];
      const DigestJob& job = jobs[task.first_job + i];
      status = Differs(*task.file, statement().resources[unit.resource], job);
      if (status.ok() && bytes != nullptr) *bytes += job.length;
    }
    if (status.ok() && task.held != nullptr) {
      status = CheckParsed(task.file, *task.held);
    }
    if (task.closes) task.file->source_ = nullptr;
    if (status.ok()) {
      for (const auto& [number, unit] : task.units) {
        if (task.held != nullptr) task.held->compared[number] = true;
      }
      if (task.held != nullptr) Keep(task.file, task.held);
      continue;
    }
    // Temporary failures of a server may pass.
    if (status.code() == Code::kMismatch) task.file->failure_ = status;
    HAULWAY_TRY(note(std::move(status), task.file));
  }
  return findings;
}

Status ComparedModel::CompareRanges(std::span<const Wanted> wanted,
                                    const DigestOptions& options) {
  return OrNoMemory([&]() -> Status {
    HAULWAY_ASSIGN(const auto findings, Run(wanted, options, nullptr));
    return StatusOf(findings);
  });
}

Result<ComparedModel::Compared> ComparedModel::CompareContent(
    std::span<const std::string> without, const DigestOptions& options,
    const std::function<void(uint64_t done, uint64_t total)>& progress) {
  return OrNoMemory([&]() -> Result<Compared> {
    const std::set<std::string_view> left_out(without.begin(), without.end());
    Compared compared;
    std::vector<Wanted> wanted;
    for (const auto& file : files_) {
      if (left_out.contains(file->name())) continue;
      wanted.push_back({.file = file.get(), .is_whole = true, .keeps = false});
    }
    compared.files = wanted.size();
    for (size_t at = 0; at < wanted.size(); at += kFilesAtOnce) {
      DigestOptions each = options;
      if (progress != nullptr) {
        each.progress = [&, before = compared.bytes](uint64_t done) {
          progress(before + done, listed_bytes_);
        };
      }
      HAULWAY_ASSIGN(auto findings,
                     Run(std::span(wanted).subspan(
                             at, std::min(kFilesAtOnce, wanted.size() - at)),
                         each, &compared.bytes));
      std::ranges::move(findings, std::back_inserter(compared.findings));
    }
    return compared;
  });
}

Status ComparedModel::Compare(SignatureScope scope, int threads,
                              const std::atomic<bool>* cancel) {
  std::vector<Wanted> wanted;
  for (const auto& file : files_) {
    bool is_open = false;
    {
      const std::lock_guard lock(file->mutex_);
      is_open = file->source_ != nullptr;
    }
    if (!is_open && scope != SignatureScope::kAll) continue;
    wanted.push_back(
        {.file = file.get(),
         .is_whole = scope == SignatureScope::kAll || !statement().has_pieces,
         .keeps = is_open});
  }
  for (size_t at = 0; at < wanted.size(); at += kFilesAtOnce) {
    HAULWAY_TRY(
        CompareRanges(std::span(wanted).subspan(
                          at, std::min(kFilesAtOnce, wanted.size() - at)),
                      {.threads = threads, .cancel = cancel}));
  }
  return Status();
}

void ComparedModel::Keep(ComparedFile* file,
                         std::shared_ptr<ComparedFile::Held> held) {
  file->held_ = std::move(held);
  if (!keeps_last_) return;
  std::shared_ptr<ComparedFile::Held> released;
  const std::lock_guard lock(keep_mutex_);
  if (last_kept_ == file) return;
  // Its mutex may be held by a thread that waits for this one.
  if (last_kept_ != nullptr) released = last_kept_->held_.exchange(nullptr);
  last_kept_ = file;
}

Result<std::shared_ptr<const ByteSource>> ComparedModel::Wrap(
    std::shared_ptr<const ByteSource> source, std::string_view uri) {
  const auto name = access_->NameOf(uri);
  if (!name.has_value()) {
    return Status(Code::kMismatch,
                  "the file lies outside of the signed model: expected a "
                  "signature of the folder that holds all files")
        .Of(source->name());
  }
  return WrapNamed(std::move(source), *name);
}

Result<std::shared_ptr<const ByteSource>> ComparedModel::WrapNamed(
    std::shared_ptr<const ByteSource> source, std::string_view name) {
  ComparedFile* const file = Find(name);
  if (file == nullptr) {
    return Status(Code::kMismatch,
                  fmt::format("{} is not signed: the signature does not list "
                              "it",
                              Quote(name)))
        .Of(source->name());
  }
  {
    const std::lock_guard lock(file->mutex_);
    if (file->source_ == nullptr) file->source_ = source;
    if (file->source_->size() != source->size()) {
      return ChangedMeanwhile().Of(source->name());
    }
  }
  return MakeComparedSource(shared_from_this(), file, std::move(source));
}

std::shared_ptr<const void> ComparedModel::BeginParsing() {
  ++parsing_;
  return std::shared_ptr<const void>(
      this, [self = shared_from_this()](const void*) { --self->parsing_; });
}

}  // namespace haulway::signing
