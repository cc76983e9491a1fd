// The checkpoints of a training run: one folder in which a program saves a
// checkpoint every some steps.
//
// A run is a local folder or an s3:// name. Its checkpoints are told by the
// names of their folders and files, as the programs that write them do; each
// program's way is a layout. docs/runs.md describes the layouts, and when a
// checkpoint counts as whole.

#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "haulway/fields.h"
#include "haulway/open.h"
#include "haulway/sink.h"
#include "haulway/status.h"

namespace haulway {

// The layouts, in the order in which a folder is tried for them.
inline constexpr std::string_view kRunLayoutWords[] = {
    "haulway", "torchtitan", "trainer", "accelerate", "megatron",
    "verl",    "deepspeed",  "nemo",    "lightning",  "orbax"};

// A checkpoint of a run.
struct RunEntry {
  std::string path;  // The folder or file; a folder in a bucket ends in '/'.
  // Nullopt if neither its name nor its content says it.
  std::optional<uint64_t> step;
  std::string layout;    // One of kRunLayoutWords.
  bool good = false;     // Whether it is whole, as far as it was checked.
  std::string reason{};  // Why it is not good; empty if it is.
  uint64_t bytes = 0;    // Size of its files.
  // What the writer stored beside the tensors, as JSON; empty if nothing.
  std::string metadata{};
};

inline constexpr FieldTable kRunEntryFields{

    Field("path", &RunEntry::path, "folder or file of the checkpoint",
          Spelling::kPath),
    Field("step", &RunEntry::step, "its step"),
    Field("layout", &RunEntry::layout, "the layout of the run"),
    Field("good", &RunEntry::good, "true if it is whole"),
    Field("reason", &RunEntry::reason, "why it is not; null if it is",
          Spelling::kTextOrNone),
    Field("bytes", &RunEntry::bytes, "size of its files"),
    Field("metadata", &RunEntry::metadata,
          "what its writer stored beside the tensors, as JSON",
          Spelling::kTextOrNone),
};
constexpr const auto& FieldsOf(const RunEntry&) { return kRunEntryFields; }

// A checkpoint, or a pointer to one, that was passed over.
struct SkippedEntry {
  std::string path;
  std::optional<uint64_t> step;
  std::string reason;
};

inline constexpr FieldTable kSkippedEntryFields{

    Field("path", &SkippedEntry::path, "what was passed over", Spelling::kPath),
    Field("step", &SkippedEntry::step, "its step, if it has one"),
    Field("reason", &SkippedEntry::reason, "why"),
};
constexpr const auto& FieldsOf(const SkippedEntry&) {
  return kSkippedEntryFields;
}

struct RunOptions {
  std::string layout;  // One of kRunLayoutWords; empty: as the names say.
  // Whether a checkpoint counts as good only if the bytes of its files have the
  // digests of its manifest or, without a manifest, their own checksums. By
  // default names, sizes and what the files say of their size are compared.
  bool digests = false;
  // The only step that counts; nullopt: all.
  std::optional<uint64_t> step = std::nullopt;
  int threads = 0;  // 0: as many as this process may use.
  RemoteOptions remote{};
  const std::atomic<bool>* cancel = nullptr;  // Set to true to stop.
};

// Returns the checkpoints of a run, the oldest first, good or not. A run that
// does not exist has none. Fails with kInvalidArgument for an unknown layout,
// with kUnsupported for a URL that cannot be listed, and as listing does.
HAULWAY_EXPORT Result<std::vector<RunEntry>> ListRun(
    std::string_view uri, const RunOptions& options = {});

struct LatestReport {
  // The newest good checkpoint.
  std::optional<RunEntry> entry;
  std::string layout;                 // Empty if there is no checkpoint.
  bool verified = false;              // Whether digests were compared.
  std::vector<SkippedEntry> skipped;  // The newest first.

  // Returns whether there is no checkpoint, good or not.
  bool is_empty() const { return layout.empty(); }
  std::string_view path() const {
    return entry.has_value() ? std::string_view(entry->path) : "";
  }
  std::optional<uint64_t> step() const {
    return entry.has_value() ? entry->step : std::nullopt;
  }
};

inline constexpr FieldTable kLatestReportFields{

    Field("path", &LatestReport::path,
          "folder or file of the newest good checkpoint; null if none is good",
          Spelling::kTextOrNone),
    Field("step", &LatestReport::step, "its step"),
    Field("layout", &LatestReport::layout,
          "the layout of the run; null if there is no checkpoint",
          Spelling::kTextOrNone),
    Field("verified", &LatestReport::verified,
          "true if digests or checksums were compared"),
    Field("skipped", &LatestReport::skipped,
          "what was passed over, the newest first: path, step and reason"),
};
constexpr const auto& FieldsOf(const LatestReport&) {
  return kLatestReportFields;
}

// Finds the newest good checkpoint: lists the run once, and checks from the
// newest on until one is good. Reads no data of others. Fails as ListRun() does
// and with kCancelled; a damaged checkpoint is passed over.
HAULWAY_EXPORT Result<LatestReport> FindLatest(std::string_view uri,
                                               const RunOptions& options = {});

// Returns the error that says why each checkpoint of the report is not good.
// `step` is that of the RunOptions. Requires: there is none that is good, but
// some checkpoint.
HAULWAY_EXPORT Status NoneIsGood(const LatestReport& report,
                                 std::string_view uri,
                                 std::optional<uint64_t> step = std::nullopt);

struct PruneRunOptions {
  RunOptions run;
  uint64_t keep = 1;     // At least 1.
  bool dry_run = false;  // Removes nothing.
  // A step that this process has just saved: known to be good. It stays,
  // beside the newest `keep`.
  std::optional<uint64_t> trusted = std::nullopt;
};

struct PruneRunReport {
  std::vector<std::string> removed;   // Paths, the newest first.
  std::vector<std::string> kept;      // Paths, the oldest first.
  std::vector<SkippedEntry> refused;  // What should go and was not removed.
  bool failed = false;                // Whether the system did not let it.
};

inline constexpr FieldTable kPruneRunReportFields{

    Field("removed", &PruneRunReport::removed, "checkpoints that were removed"),
    Field("kept", &PruneRunReport::kept, "checkpoints that stay"),
    Field("refused", &PruneRunReport::refused,
          "what should go and was not removed, and why"),
    Field("failed", &PruneRunReport::failed,
          "true if the system did not let one of `refused` be removed"),
};
constexpr const auto& FieldsOf(const PruneRunReport&) {
  return kPruneRunReportFields;
}

// Removes old checkpoints. The newest `keep` good ones stay, and everything
// newer than the newest good one; if none is good, all stay. One of those that
// stay has been verified with digests. A checkpoint of a trainer that the
// newest one names as the best stays, too. Nothing is removed through a
// symbolic link, nothing without a step in its name, except Lightning's
// last.ckpt, and in a run of the layout "haulway" nothing without a manifest. A
// local checkpoint loses its name in one step; below an s3:// name the file
// that makes it whole goes first. Also removes what saves and prunes that were
// killed left, if it is older than the newest good checkpoint and nobody uses
// it. Fails with kInvalidArgument if `keep` is 0, with kNotFound if a local
// folder is not there, and as FindLatest() does.
HAULWAY_EXPORT Result<PruneRunReport> PruneRun(std::string_view uri,
                                               const PruneRunOptions& options);

// A NewStep is a checkpoint of the layout "haulway" that is being saved. Its
// files are written to folder(); Publish() makes them a checkpoint of the run.
// Without Publish() no trace of it stays.
//
// Several processes may fill one folder; only the one with the NewStep
// publishes. In a child that was forked, a NewStep does nothing.
// Threads: one at a time.
class HAULWAY_EXPORT NewStep {
 public:
  struct Options {
    // Only for a local run: whether the step survives a loss of power once
    // Publish() has returned.
    Durability durability = Durability::kFull;
    int threads = 0;  // 0: as many as this process may use.
    RemoteOptions remote{};
  };

  // Makes the folder to fill: beside the steps of a local run, which is made
  // too, under a hidden name; for an s3:// name below TMPDIR, from where
  // Publish() sends the files. Fails with kInvalidArgument if another program's
  // file or folder has the name of the step, with kUnsupported for other URLs,
  // and as the system does.
  static Result<std::unique_ptr<NewStep>> Begin(std::string_view uri,
                                                uint64_t step,
                                                const Options& options);
  virtual ~NewStep() = default;

  // The folder, without a slash at the end.
  virtual const std::string& folder() const = 0;

  // Opens a file of the step for writing: in the folder or, for an s3:// name,
  // in the store at once. Its digest is computed meanwhile, and Publish()
  // neither reads nor syncs it again: the sink does what `file` says. Fails as
  // OpenFileSink() and OpenSink() do.
  virtual Result<std::unique_ptr<ByteSink>> OpenFile(
      const std::string& name, const FileSinkOptions& file) = 0;

  // Writes the manifest and makes the step visible, in place of an older save
  // of the same step: a local one in one step, below an s3:// name with the
  // manifest, which is written last. `format` and `metadata`, which is JSON or
  // empty, are stored. Fails with kInvalidArgument if the folder holds nothing,
  // or what is neither a file nor a folder; and as writing does. Then the run
  // is as before.
  virtual Result<RunEntry> Publish(std::string_view format,
                                   std::string_view metadata) = 0;

  // Removes what was not published, as the destructor does.
  virtual void Discard() = 0;
};

// Writes the manifest of a checkpoint that another program wrote, a local
// folder, so that FindLatest() compares sizes and digests. Call it when the
// folder is complete. Fails as NewStep::Publish() does.
HAULWAY_EXPORT Status WriteRunManifest(const std::string& folder, uint64_t step,
                                       std::string_view format,
                                       std::string_view metadata,
                                       const NewStep::Options& options = {});

}  // namespace haulway
