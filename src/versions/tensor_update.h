// Applies the changes of one version to the files of a target.

#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/posix.h"
#include "delta/version_reader.h"
#include "haulway/status.h"
#include "versions/change_journal.h"
#include "versions/target_folder.h"

namespace haulway {

// A TensorUpdate applies the frames of a delta to the tensors of a target.
class TensorUpdate {
 public:
  // `origin`: the version's folder, for messages. Fails with kMismatch if the
  // delta changes a tensor that the target lacks.
  static Result<TensorUpdate> Make(const TargetFolder& target,
                                   delta::OpenedDelta delta,
                                   std::string origin);

  size_t tensors() const { return tensors_.size(); }
  const delta::VersionFacts& facts() const { return delta_.facts; }

  // Checks the beginning of each frame. Returns how many old bytes each tensor
  // has to keep. Fails as ChangeReader::Open() does.
  Result<std::vector<uint64_t>> CheckFrames(int threads) const;

  // Replaces files that are links, and opens all that will change.
  Status OpenFiles();

  // Applies all changes, or goes on with what `journal` says, which may be to
  // undo them. After a failure all changes are undone. Requires: OpenFiles().
  Status Run(ChangeJournal* journal, int threads,
             const std::atomic<bool>* cancel);
  // Returns whether the target is as it was before the version.
  bool is_undone() const { return is_undone_; }

  uint64_t written_bytes() const { return written_; }

 private:
  // A tensor that changes.
  struct Changed {
    uint32_t shard;
    uint32_t row;  // The entry's number in its shard.
    TargetTensor place;
  };

  TensorUpdate(const TargetFolder& target, delta::OpenedDelta delta,
               std::string origin);

  Status In(Status status, const Changed& changed) const;
  std::string_view NameOf(const Changed& changed) const;
  Result<std::vector<std::byte>> FrameOf(const Changed& changed) const;
  Result<delta::ChangeReader> OpenFrame(const Changed& changed,
                                        std::span<const std::byte> frame) const;
  // Writes the blocks of slots that are full.
  Status EmptySlots(ChangeJournal* journal);
  Status WriteSlot(ChangeJournal* journal, ChangeJournal::Slot* slot);
  Status ForEach(ChangeJournal* journal, int threads,
                 const std::atomic<bool>* cancel);
  Status Change(ChangeJournal* journal, uint64_t row, ChangeJournal::Slot* slot,
                const std::atomic<bool>* cancel);
  Status Undo(ChangeJournal* journal, uint64_t row, ChangeJournal::Slot* slot);

  const TargetFolder* target_;
  delta::OpenedDelta delta_;
  std::string origin_;
  TargetTensors place_;
  std::vector<Changed> tensors_;
  std::vector<UniqueFd> files_;  // By row of place_.files.
  bool is_undone_ = false;
  uint64_t written_ = 0;
};

}  // namespace haulway
