// Publishing versions of weights from a training loop.
//
// A VersionPublisher keeps the tensors of the newest version in memory. Each
// call compares the tensors of the caller with these and writes the next
// version: a delta, or a full checkpoint. docs/deltas.md describes the format.

#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "haulway/delta.h"
#include "haulway/dtype.h"
#include "haulway/open.h"
#include "haulway/save.h"
#include "haulway/sink.h"
#include "haulway/status.h"

namespace haulway {

struct VersionPublisherOptions {
  std::string encoding = "xor";       // Or "overwrite".
  std::string checksum = "xxh3-128";  // Or "blake3", "adler32".
  // Most bytes of frames, or of tensors of a full version, in one file; 0: one
  // file.
  uint64_t shard_bytes = 0;
  // Versions whose number is a multiple of this are full ones; 0: none.
  uint64_t full_every = 0;
  // How many versions to keep, with those that they need; 0: all.
  uint64_t keep = 0;
  // The names of versions: "weight_v" (weight_v000001, id 000001) or "v" (v1,
  // id v1).
  std::string layout = "weight_v";
  int threads = 0;  // 0: as many as this process may use.
  // Only for a local folder: whether a version survives a loss of power once
  // Publish() has returned.
  Durability durability = Durability::kFull;
  RemoteOptions remote{};  // How URLs are reached.
};

// The tensors that a version holds, without their bytes.
struct PublishedTensor {
  std::string name;
  DType dtype = DType::kU8;
  std::vector<int64_t> shape;
  // The checksum of its new bytes; empty if it is as in the version before.
  std::string checksum;
};

// A VersionPublisher writes the versions of one folder, one after another.
//
// Several processes may publish one version together, each its own tensors. One
// of them leads: it opens the folder and makes versions visible. The others
// join. Each calls Begin(), Add() and WriteShards(); the leader then calls
// Commit(). What the processes tell one another is up to the caller. For one
// process, Publish() does all of it.
//
// A version that was not published leaves the kept tensors as they were.
// Threads: one at a time. Processes: belongs to the one that opened it.
class HAULWAY_EXPORT VersionPublisher {
 public:
  // Opens a local folder, which is made, or an s3:// name. If there are
  // versions, the newest whole one is opened, else the checkpoint `base`, which
  // is version 0; `base` may be empty for SetBase(). Removes what a publisher
  // that was killed left.
  //
  // Fails with kUnavailable while another publisher has the local folder, with
  // kInvalidArgument if the options contradict one another or the folder, with
  // kUnsupported for a URL that cannot be written to, and as opening does.
  static Result<std::unique_ptr<VersionPublisher>> Open(
      std::string_view uri, std::string_view base,
      const VersionPublisherOptions& options = {});
  // Opens the folder in a process that does not lead.
  static Result<std::unique_ptr<VersionPublisher>> Join(
      std::string_view uri, std::string_view base,
      const VersionPublisherOptions& options = {});
  VersionPublisher(const VersionPublisher&) = delete;
  VersionPublisher& operator=(const VersionPublisher&) = delete;
  ~VersionPublisher();  // Close().

  // Returns whether the folder has no version, and `base` was empty.
  bool needs_base() const;
  // Copies the tensors of version 0. Requires: needs_base().
  Status SetBase(std::span<const TensorToWrite> tensors);
  // Copies all tensors of the newest version to memory, which Add() otherwise
  // does for those that it is given. Fails as reading does.
  Status LoadAll();

  // The number of the newest version; 0 is the base.
  uint64_t version() const;

  // Publishes a version of these tensors, whose `bytes` are in memory. `full`:
  // write a full version, whose tensors may have other names, dtypes and
  // shapes. Fails with kMismatch, naming the tensor, if one is new, missing, or
  // of another dtype or shape; and as writing does. Then no version was
  // written.
  Result<WeightVersion> Publish(std::span<const TensorToWrite> state,
                                bool full = false);

  // The steps of Publish().
  //
  // Begins the next version; returns whether it is a full one.
  Result<bool> Begin(bool full);
  // Adds tensors, as often as needed. Their bytes are not used afterwards.
  Status Add(std::span<const TensorToWrite> tensors);
  // Returns the tensors that were added.
  std::vector<PublishedTensor> Added() const;
  // Fails with kMismatch if a tensor of the newest version is not in `all`,
  // unless the version may have other tensors.
  Status CheckComplete(std::span<const PublishedTensor> all) const;
  // Leaves out tensors that other processes write.
  Status LeaveOut(std::span<const std::string> names);
  // Returns how many shards this process writes.
  uint64_t shards() const;
  // Makes the folder of the version, or enters the one at `place`; returns its
  // place.
  Result<std::string> EnterFolder(
      std::optional<std::string_view> place = std::nullopt);
  struct Written {
    // Tensor and shard.
    std::vector<std::pair<std::string, std::string>> weight_map;
    uint64_t bytes = 0;
    uint64_t total_size = 0;  // Bytes of the tensors of a full version.
  };
  // Writes the shards, as number `first` and up of `count`, from 0.
  Result<Written> WriteShards(uint64_t first, uint64_t count);
  // Writes the index of all shards and makes the version visible.
  Result<WeightVersion> Commit(const Written& all);
  // Ends the version that was begun: it was published, and holds `all`; or it
  // was not, and the tensors are again what they were.
  void Accept(std::span<const PublishedTensor> all);
  void Discard();
  // Removes versions that need not be kept. Fails as PruneVersions() does.
  Status Prune();

  // Lets go of the folder and of the tensors. Every later call fails.
  void Close();
  // In a child that was forked: lets go of what keeps the folder, which is the
  // parent's. Every later call fails.
  void Leave();

  class State;

 private:
  explicit VersionPublisher(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

struct PruneOptions {
  uint64_t keep = 1;     // At least 1.
  bool dry_run = false;  // Removes nothing.
  RemoteOptions remote{};
};

struct PruneReport {
  std::vector<std::string> removed;  // Ids, the newest first.
  std::vector<std::string> kept;     // Ids, by number.
};

inline constexpr FieldTable kPruneReportFields{

    Field("removed", &PruneReport::removed, "ids of the versions removed"),
    Field("kept", &PruneReport::kept, "ids of the versions kept"),
};
constexpr const auto& FieldsOf(const PruneReport&) {
  return kPruneReportFields;
}

// Removes old versions of a folder or below an s3:// name. Keeps the newest
// `keep` versions and all that they need. Versions that lack files are removed
// unless they are newer than every whole one. The newest goes first, so that
// every version that is left can be opened at any time. Fails with
// kInvalidArgument if `keep` is 0, and as ListVersions(), the system and
// requests do.
HAULWAY_EXPORT Result<PruneReport> PruneVersions(
    std::string_view uri, const PruneOptions& options = {});

}  // namespace haulway
