// Design: threads take tensors in turn, the largest first. A block is read from
// the file to a slot of the journal, changed and summed there while it is in
// cache, and written back. xor undoes itself, so the journal needs no old bytes
// for it; for overwrite it keeps those that are replaced.
//
// Alternative not taken: changing the files through a mapping. That is a little
// faster, but a full disk, or a file that another process cuts, would end the
// process.

#include "versions/tensor_update.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <mutex>
#include <numeric>
#include <utility>

#include "base/no_memory.h"
#include "base/text.h"
#include "base/thread_pool.h"
#include "delta/change_reader.h"
#include "delta/checksum.h"
#include "versions/copy_files.h"

namespace haulway {

namespace {

using delta::ChangeReader;

// Gives a file that is a link, or has several names, a copy of its own.
Status ReplaceLink(const std::string& path, Durability durability) {
  struct stat facts;
  if (::lstat(path.c_str(), &facts) != 0) {
    return Status::FromErrno(errno, "cannot look at the file").Of(path);
  }
  if (S_ISREG(facts.st_mode) && facts.st_nlink == 1) return Status();
  HAULWAY_ASSIGN(const UniqueFd from, OpenForReading(path));
  HAULWAY_ASSIGN(const uint64_t size, RegularFileSize(from.get(), path));
  const std::string fresh = path + ".haulway-tmp";
  const UniqueFd to(
      ::open(fresh.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (to.get() < 0) {
    return Status::FromErrno(errno, "cannot make the file").Of(fresh);
  }
  Status status = CopyFile(to.get(), from.get(), size);
  if (status.ok() && durability == Durability::kFull &&
      RetryInterrupted([&] { return ::fsync(to.get()); }) != 0) {
    status = Status::FromErrno(errno, "cannot sync the file");
  }
  if (status.ok() && ::rename(fresh.c_str(), path.c_str()) != 0) {
    status = Status::FromErrno(errno, "cannot rename the file");
  }
  if (status.ok()) return status;
  ::unlink(fresh.c_str());
  return std::move(status).Of(path);
}

Status NotUndone(Status status) {
  return std::move(status).In(
      "undoing the changes of the version, which must be applied again");
}

// Hands out slots of a journal.
class Slots {
 public:
  explicit Slots(uint32_t count) : free_(count) {
    std::iota(free_.begin(), free_.end(), 0);
  }
  // Requires: no more threads than slots.
  uint32_t Take() {
    const std::scoped_lock lock(mutex_);
    const uint32_t slot = free_.back();
    free_.pop_back();
    return slot;
  }
  void Give(uint32_t slot) {
    const std::scoped_lock lock(mutex_);
    free_.push_back(slot);
  }

 private:
  std::mutex mutex_;
  std::vector<uint32_t> free_ HAULWAY_GUARDED_BY(mutex_);
};

}  // namespace

TensorUpdate::TensorUpdate(const TargetFolder& target, delta::OpenedDelta delta,
                           std::string origin)
    : target_(&target), delta_(std::move(delta)), origin_(std::move(origin)) {}

Result<TensorUpdate> TensorUpdate::Make(const TargetFolder& target,
                                        delta::OpenedDelta delta,
                                        std::string origin) {
  TensorUpdate update(target, std::move(delta), std::move(origin));
  HAULWAY_ASSIGN(update.place_, FindTargetTensors(target));
  for (uint32_t s = 0; s < update.delta_.shards.size(); ++s) {
    const auto& entries = update.delta_.shards[s].reader->index().entries;
    for (uint32_t row = 0; row < entries.size(); ++row) {
      Changed changed{s, row, {}};
      const auto found = update.place_.tensors.find(entries[row].name);
      if (found == update.place_.tensors.end() || found->second.bytes == 0) {
        return update.In(
            Status(Code::kMismatch, "the target has no bytes of this tensor"),
            changed);
      }
      changed.place = found->second;
      update.tensors_.push_back(changed);
    }
  }
  return update;
}

std::string_view TensorUpdate::NameOf(const Changed& changed) const {
  return delta_.shards[changed.shard].reader->index().entries[changed.row].name;
}

Status TensorUpdate::In(Status status, const Changed& changed) const {
  return std::move(status)
      .In(Quote(NameOf(changed)))
      .In(fmt::format("version {}", Quote(delta_.facts.version)))
      .Of(fmt::format("{}/{}", origin_, delta_.shards[changed.shard].name));
}

Result<std::vector<std::byte>> TensorUpdate::FrameOf(
    const Changed& changed) const {
  const FormatReader& shard = *delta_.shards[changed.shard].reader;
  const CheckpointIndex& index = shard.index();
  const TensorInfo& tensor = index.tensors[index.entries[changed.row].tensor];
  std::vector<std::byte> frame(tensor.nbytes);
  HAULWAY_TRY(shard.source()->ReadAt(
      index.storages[tensor.storage].offset + tensor.storage_offset, frame));
  return frame;
}

Result<ChangeReader> TensorUpdate::OpenFrame(
    const Changed& changed, std::span<const std::byte> frame) const {
  return ChangeReader::Open(delta_.facts.change, frame, changed.place.bytes);
}

Result<std::vector<uint64_t>> TensorUpdate::CheckFrames(int threads) const {
  std::vector<uint64_t> kept(tensors_.size());
  HAULWAY_TRY(ParallelFor(tensors_.size(), threads, [&](uint64_t i) -> Status {
    const auto check = [&]() -> Status {
      HAULWAY_ASSIGN(const auto frame, FrameOf(tensors_[i]));
      HAULWAY_ASSIGN(const auto reader, OpenFrame(tensors_[i], frame));
      kept[i] = reader.replaced();
      return Status();
    };
    Status status = OrNoMemory(check);
    return status.ok() ? status : In(std::move(status), tensors_[i]);
  }));
  return kept;
}

Status TensorUpdate::OpenFiles() {
  files_.resize(place_.files.size());
  for (const Changed& changed : tensors_) {
    UniqueFd& file = files_[changed.place.file];
    if (file.get() >= 0) continue;
    const std::string path = target_->In(place_.files[changed.place.file]);
    HAULWAY_TRY(ReplaceLink(path, target_->durability()));
    file = UniqueFd(::open(path.c_str(), O_RDWR | O_CLOEXEC));
    if (file.get() < 0) {
      return Status::FromErrno(errno, "cannot open the file to change it")
          .Of(path);
    }
  }
  return Status();
}

Status TensorUpdate::WriteSlot(ChangeJournal* journal,
                               ChangeJournal::Slot* slot) {
  const Changed& changed = tensors_[slot->tensor];
  const std::span<const std::byte> block(slot->block, slot->bytes);
  Status status = WriteFully(files_[changed.place.file].get(),
                             changed.place.offset + slot->offset, {&block, 1});
  if (!status.ok()) {
    return std::move(status).Of(target_->In(place_.files[changed.place.file]));
  }
  ChangeJournal::Tensor& tensor = journal->tensor(slot->tensor);
  ChangeJournal::Store(slot->is_undo != 0 ? &tensor.undone : &tensor.done,
                       slot->offset + slot->bytes);
  ChangeJournal::Store(&slot->is_full, 0);
  std::atomic_ref<uint64_t>(written_).fetch_add(block.size(),
                                                std::memory_order_relaxed);
  return Status();
}

Status TensorUpdate::EmptySlots(ChangeJournal* journal) {
  for (uint32_t i = 0; i < journal->slots(); ++i) {
    ChangeJournal::Slot& slot = journal->slot(i);
    if (slot.is_full == 0) continue;
    const bool is_valid =
        slot.tensor < tensors_.size() && slot.bytes <= sizeof(slot.block) &&
        slot.offset <= tensors_[slot.tensor].place.bytes &&
        slot.bytes <= tensors_[slot.tensor].place.bytes - slot.offset;
    if (!is_valid) return Status(Code::kCorrupt, "the journal is damaged");
    HAULWAY_TRY(WriteSlot(journal, &slot));
  }
  return Status();
}

Status TensorUpdate::Change(ChangeJournal* journal, uint64_t row,
                            ChangeJournal::Slot* slot,
                            const std::atomic<bool>* cancel) {
  const Changed& changed = tensors_[row];
  ChangeJournal::Tensor& tensor = journal->tensor(row);
  if (tensor.ended != 0) return Status();
  HAULWAY_ASSIGN(const auto frame, FrameOf(changed));
  HAULWAY_ASSIGN(ChangeReader reader, OpenFrame(changed, frame));
  const auto kept = journal->kept(row);
  if (reader.replaced() > kept.size()) {
    return Status(Code::kCorrupt, "the journal is damaged");
  }
  delta::Checksum checksum(delta_.facts.checksum);
  std::vector<std::byte> passed;  // Changes that were written before.
  for (uint64_t at = 0; at < changed.place.bytes;) {
    if (cancel != nullptr && cancel->load()) {
      return Status(Code::kCancelled, "applying was cancelled");
    }
    const std::span<std::byte> block(
        slot->block,
        std::min<uint64_t>(sizeof(slot->block), changed.place.bytes - at));
    HAULWAY_TRY(ReadFully(files_[changed.place.file].get(),
                          changed.place.offset + at, block));
    const bool is_done = at < tensor.done;
    if (is_done) passed.assign(block.begin(), block.end());
    HAULWAY_ASSIGN(
        const ChangeReader::Step step,
        is_done ? reader.Next(passed) : reader.Next(block, kept.data()));
    checksum.Update(block.first(step.bytes));
    if (!is_done) {
      slot->tensor = row;
      slot->offset = at;
      slot->bytes = step.bytes;
      slot->is_undo = 0;
      if (step.is_changed) {
        ChangeJournal::Store(&slot->is_full, 1);
        HAULWAY_TRY(WriteSlot(journal, slot));
      } else {
        ChangeJournal::Store(&tensor.done, at + step.bytes);
      }
    }
    at += step.bytes;
  }
  HAULWAY_TRY(reader.Finish());
  const delta::DeltaShard& shard = delta_.shards[changed.shard];
  HAULWAY_TRY(delta::CompareChecksums(
      delta_.facts.checksum, shard.checksums[changed.row], checksum.Finish()));
  ChangeJournal::Store(&tensor.ended, 1);
  return Status();
}

Status TensorUpdate::Undo(ChangeJournal* journal, uint64_t row,
                          ChangeJournal::Slot* slot) {
  const Changed& changed = tensors_[row];
  ChangeJournal::Tensor& tensor = journal->tensor(row);
  const uint64_t done = tensor.done;
  if (done <= tensor.undone) return Status();
  HAULWAY_ASSIGN(const auto frame, FrameOf(changed));
  HAULWAY_ASSIGN(ChangeReader reader, OpenFrame(changed, frame));
  const auto kept = journal->kept(row);
  if (done > changed.place.bytes || reader.replaced() > kept.size()) {
    return Status(Code::kCorrupt, "the journal is damaged");
  }
  std::vector<std::byte> passed;
  for (uint64_t at = 0; at < done;) {
    const std::span<std::byte> block(
        slot->block,
        std::min<uint64_t>(sizeof(slot->block), changed.place.bytes - at));
    HAULWAY_TRY(ReadFully(files_[changed.place.file].get(),
                          changed.place.offset + at, block));
    const bool is_done = at < tensor.undone;
    if (is_done) passed.assign(block.begin(), block.end());
    HAULWAY_ASSIGN(
        const ChangeReader::Step step,
        reader.Undo(is_done ? std::span(passed) : block, kept.data()));
    if (!is_done) {
      slot->tensor = row;
      slot->offset = at;
      slot->bytes = step.bytes;
      slot->is_undo = 1;
      ChangeJournal::Store(&slot->is_full, 1);
      HAULWAY_TRY(WriteSlot(journal, slot));
    }
    at += step.bytes;
  }
  return Status();
}

Status TensorUpdate::ForEach(ChangeJournal* journal, int threads,
                             const std::atomic<bool>* cancel) {
  std::vector<uint64_t> order(tensors_.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, std::greater<>(), [&](uint64_t row) {
    return tensors_[row].place.bytes;
  });
  const bool is_undo = journal->is_undo();
  const uint32_t most = journal->slots();
  Slots slots(most);
  threads = std::min<int>(threads, static_cast<int>(most));
  return ParallelFor(order.size(), threads, [&](uint64_t i) -> Status {
    const uint32_t slot = slots.Take();
    Status status = OrNoMemory([&] {
      return is_undo ? Undo(journal, order[i], &journal->slot(slot))
                     : Change(journal, order[i], &journal->slot(slot), cancel);
    });
    slots.Give(slot);
    if (status.ok() || status.code() == Code::kCancelled) return status;
    return In(std::move(status), tensors_[order[i]]);
  });
}

Status TensorUpdate::Run(ChangeJournal* journal, int threads,
                         const std::atomic<bool>* cancel) {
  Status status = EmptySlots(journal);
  if (!journal->is_undo()) {
    if (status.ok()) status = ForEach(journal, threads, cancel);
    if (status.ok()) return status;
    journal->BeginUndo();
    Status emptied = EmptySlots(journal);
    if (!emptied.ok()) return NotUndone(std::move(emptied));
  }
  Status undone = ForEach(journal, threads, nullptr);
  if (!undone.ok()) return NotUndone(std::move(undone));
  is_undone_ = true;
  return status;
}

}  // namespace haulway
