// Design: the tensors of the newest version are kept in memory of our own, and
// become those of the next version while its frames are made, chunk by chunk:
// each tensor of the caller is read once, and frame, checksum and kept bytes
// agree whatever the caller does meanwhile. If the version is not published,
// the frames bring the old bytes back: an xor undoes itself. For other
// encodings, an xor is spooled beside the frame.
//
// Alternative not taken: keep the old bytes until the version is published, and
// copy the new ones then. The caller's tensors would be read twice, and those
// on a device or not dense would have to be copied twice.

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <iterator>
#include <map>
#include <system_error>
#include <utility>

#include "base/no_memory.h"
#include "base/posix.h"
#include "base/text.h"
#include "base/thread_pool.h"
#include "checkpoint/folder.h"
#include "checkpoint/version_source.h"
#include "delta/change_writer.h"
#include "delta/checksum.h"
#include "delta/version_facts.h"
#include "haulway/checkpoint.h"
#include "haulway/folder.h"
#include "haulway/machine.h"
#include "haulway/version_publisher.h"
#include "io/file_system.h"
#include "io/model_names.h"
#include "versions/change_writers.h"
#include "versions/copy_files.h"
#include "versions/frame_spool.h"
#include "versions/kept_weights.h"
#include "versions/version_files.h"
#include "versions/version_folder.h"
#include "versions/version_folders.h"

namespace haulway {

namespace {

constexpr std::string_view kLockName = ".haulway-publisher.lock";
constexpr size_t kNotKept = SIZE_MAX;

// A tensor of the version that is being made.
struct AddedTensor {
  PublishedTensor facts;
  uint64_t bytes = 0;
  size_t kept = kNotKept;
  Buffer fresh;  // The bytes, if they are not those of a kept tensor.
  std::unique_ptr<SpooledChange> changed;  // If they changed.
  FrameSpool::Frame undo;  // Of `changed`, if its frame cannot undo.
  uint64_t done = 0;       // Bytes of the kept tensor that are new.
  bool is_written_here = true;
};

// The tensors of the version that is being made.
struct Draft {
  bool is_full = false;
  bool may_differ = false;  // In names, dtypes and shapes.
  FrameSpool spool;
  std::vector<std::unique_ptr<AddedTensor>> added;
  std::map<std::string, size_t, std::less<>> numbers;
  std::unique_ptr<NewFolder> folder;
};

// What the names of versions look like.
struct VersionLayout {
  std::string_view name;
  std::string (*id)(uint64_t number);
  std::string (*folder)(uint64_t number);
};

std::string PlainName(uint64_t number) { return fmt::format("v{}", number); }

constexpr VersionLayout kLayouts[] = {
    {"weight_v", [](uint64_t number) { return fmt::format("{:06}", number); },
     [](uint64_t number) { return fmt::format("weight_v{:06}", number); }},
    {"v", PlainName, PlainName}};

Status Wrong(std::string_view what) {
  return Status(Code::kInvalidArgument, what);
}

}  // namespace

class VersionPublisher::State {
 public:
  State(std::string uri, std::string base,
        const VersionPublisherOptions& options, bool leads)
      : root_(std::move(uri)),
        base_(std::move(base)),
        options_(options),
        leads_(leads) {
    if (const auto path = LocalPath(root_)) {
      is_local_ = true;
      root_ = path->empty() ? "." : *path;
    }
    while (root_.size() > 1 && root_.ends_with('/')) root_.pop_back();
    sources_.remote = options_.remote;
    sources_.base = base_;
  }

  Status Open() {
    HAULWAY_TRY(CheckOptions());
    if (is_local_ && leads_) {
      std::error_code error;
      std::filesystem::create_directories(root_, error);
      if (error) {
        return Status::FromErrno(error.value(), "cannot make the folder")
            .Of(root_);
      }
      HAULWAY_TRY(TakeLock());
      SweepVersionFolders(root_);
    }
    HAULWAY_TRY(FindNewest());
    if (!newest_.empty()) return ReadNames();
    needs_base_ = true;
    return Status();
  }

  bool needs_base() const { return needs_base_; }
  uint64_t version() const { return version_; }

  Status SetBase(std::span<const TensorToWrite> tensors) {
    if (!needs_base_) {
      return Wrong("the folder has versions: the newest one is the base")
          .Of(root_);
    }
    HAULWAY_TRY(kept_.Copy(tensors, threads()));
    needs_base_ = false;
    return Status();
  }

  Status LoadAll() {
    std::vector<size_t> rows;
    for (size_t i = 0; i < kept_.size(); ++i) {
      if (!kept_[i].memory.has_value()) rows.push_back(i);
    }
    return LoadKept(rows);
  }

  Result<bool> Begin(bool full) {
    HAULWAY_TRY(CheckOpen());
    if (draft_ != nullptr) return Wrong("a version is being published");
    if (needs_base_) return Wrong("the publisher has no base");
    draft_ = std::make_unique<Draft>();
    draft_->may_differ = full;
    draft_->is_full = full || (options_.full_every != 0 &&
                               (version_ + 1) % options_.full_every == 0);
    return draft_->is_full;
  }

  Status Add(std::span<const TensorToWrite> tensors) {
    HAULWAY_TRY(CheckBegun());
    std::vector<Job> jobs;
    std::vector<size_t> to_load;
    for (const TensorToWrite& tensor : tensors) {
      HAULWAY_ASSIGN(AddedTensor* const added, AddFacts(tensor));
      if (added->kept == kNotKept || added->bytes != 0) {
        jobs.push_back({added, &tensor});
      }
      if (added->kept != kNotKept && !kept_[added->kept].memory.has_value()) {
        to_load.push_back(added->kept);
      }
    }
    HAULWAY_TRY(LoadKept(to_load));
    // The largest first, so that threads end together.
    std::ranges::stable_sort(jobs, std::ranges::greater(),
                             [](const Job& job) { return job.added->bytes; });
    return ParallelFor(jobs.size(), threads(), [&](uint64_t i) -> Status {
      if (CancelScope::IsCancelled()) {
        return Status(Code::kCancelled, "publishing was cancelled");
      }
      Status status = Take(*jobs[i].tensor, jobs[i].added);
      if (status.ok()) return status;
      return std::move(status).In(Quote(jobs[i].tensor->name));
    });
  }

  std::vector<PublishedTensor> Added() const {
    std::vector<PublishedTensor> all;
    if (draft_ == nullptr) return all;
    for (const auto& one : draft_->added) all.push_back(one->facts);
    return all;
  }

  Status CheckComplete(std::span<const PublishedTensor> all) const {
    HAULWAY_TRY(CheckBegun());
    if (draft_->may_differ) return Status();
    std::vector<std::string_view> names;
    for (const PublishedTensor& one : all) names.push_back(one.name);
    std::ranges::sort(names);
    for (size_t i = 0; i < kept_.size(); ++i) {
      const std::string_view name = kept_[i].name;
      if (std::ranges::binary_search(names, name)) continue;
      return Differs(name, "is missing");
    }
    return Status();
  }

  Status LeaveOut(std::span<const std::string> names) {
    HAULWAY_TRY(CheckBegun());
    for (const std::string& name : names) {
      const auto found = draft_->numbers.find(name);
      if (found == draft_->numbers.end()) continue;
      draft_->added[found->second]->is_written_here = false;
    }
    return Status();
  }

  uint64_t shards() const { return draft_ == nullptr ? 0 : Split().size(); }

  Result<std::string> EnterFolder(std::optional<std::string_view> place) {
    HAULWAY_TRY(CheckBegun());
    HAULWAY_TRY(CheckLock());
    const std::string path =
        fmt::format("{}/{}", root_, layout_->folder(version_ + 1));
    const NewFolder::Options options{.durability = options_.durability,
                                     .remote = options_.remote};
    auto folder = place.has_value() ? NewFolder::Join(path, *place, options)
                                    : NewFolder::Make(path, options);
    if (!folder.ok()) return OfOther(folder.status());
    draft_->folder = *std::move(folder);
    return draft_->folder->place();
  }

  Result<Written> WriteShards(uint64_t first, uint64_t count) {
    HAULWAY_TRY(CheckBegun());
    if (draft_->folder == nullptr) return Wrong("no folder was entered");
    ShardWriter writer(draft_->folder.get(), first, count);
    Written written;
    for (const ShardRows& shard : Split()) {
      if (CancelScope::IsCancelled()) {
        return Status(Code::kCancelled, "publishing was cancelled");
      }
      if (!draft_->is_full) {
        std::vector<const SpooledChange*> tensors;
        for (const size_t row : shard) {
          tensors.push_back(draft_->added[row]->changed.get());
        }
        HAULWAY_TRY(OfOther(writer.WriteDelta(tensors, draft_->spool)));
        continue;
      }
      std::vector<TensorToWrite> tensors;
      for (const size_t row : shard) {
        const AddedTensor& one = *draft_->added[row];
        const Buffer& bytes =
            one.kept == kNotKept ? one.fresh : *kept_[one.kept].memory;
        tensors.push_back(
            {.name = one.facts.name,
             .dtype = one.facts.dtype,
             .shape = one.facts.shape,
             .bytes = {.length = one.bytes,
                       .bytes = one.bytes == 0 ? nullptr : bytes.data()}});
        written.total_size += one.bytes;
      }
      HAULWAY_TRY(OfOther(writer.WriteFull(std::move(tensors))));
    }
    written.weight_map = writer.weight_map();
    written.bytes = writer.bytes();
    return written;
  }

  Result<WeightVersion> Commit(const Written& all) {
    HAULWAY_TRY(CheckBegun());
    if (draft_->folder == nullptr) return Wrong("no folder was entered");
    const uint64_t number = version_ + 1;
    WeightVersion version;
    version.id = layout_->id(number);
    version.number = number;
    std::string index;
    if (draft_->is_full) {
      version.kind = "full";
      HAULWAY_TRY(OfOther(CopyPlainFiles()));
      index = FullIndex(version.id, all.total_size, all.weight_map);
    } else {
      HAULWAY_ASSIGN(
          const delta::VersionFacts facts,
          NewVersionFacts(version.id, layout_->id(version_), options_.encoding,
                          options_.checksum, layout_->folder(number)));
      version.base = facts.base;
      version.encoding = Name(facts.change);
      version.checksum = Name(facts.checksum);
      index = DeltaIndex(facts, all.weight_map);
    }
    HAULWAY_TRY(OfOther(WriteIndex(index, draft_->folder.get())));
    HAULWAY_TRY(draft_->folder->Commit());
    version.tensors = all.weight_map.size();
    version.bytes = all.bytes;
    version.complete = true;
    version.path = fmt::format("{}/{}", root_, layout_->folder(number));
    return version;
  }

  void Accept(std::span<const PublishedTensor> all) {
    if (draft_ == nullptr) return;
    ++version_;
    newest_ = fmt::format("{}/{}/{}", root_, layout_->folder(version_),
                          kVersionIndexName);
    if (draft_->may_differ) KeepOthers(all);
    // What this process wrote stays, also if another one committed it.
    if (draft_->folder != nullptr) (void)draft_->folder->Commit();
    draft_.reset();
  }

  void Discard() {
    if (draft_ == nullptr) return;
    const Status undone =
        ParallelFor(draft_->added.size(), threads(), [&](uint64_t i) -> Status {
          AddedTensor& one = *draft_->added[i];
          if (one.done == 0) return Status();
          const FrameSpool::Frame& frame =
              HasOwnUndo() ? one.undo : one.changed->frame;
          HAULWAY_ASSIGN(const std::vector<std::byte> bytes,
                         draft_->spool.ReadAll(frame));
          return delta::Undo(bytes, kept_[one.kept].memory->mutable_bytes(),
                             one.done);
        });
    is_broken_ = is_broken_ || !undone.ok();
    draft_.reset();
  }

  Status Prune() const {
    if (options_.keep == 0) return Status();
    return PruneVersions(root_,
                         {.keep = options_.keep, .remote = options_.remote})
        .status();
  }

  void Leave() {
    has_left_ = true;
    lock_ = UniqueFd();
  }

  void Close() {
    Discard();
    kept_ = KeptWeights();
    is_closed_ = true;
    lock_ = UniqueFd();
  }

 private:
  struct Job {
    AddedTensor* added;
    const TensorToWrite* tensor;
  };

  int threads() const {
    return options_.threads > 0 ? options_.threads : UsableCpus();
  }

  bool HasOwnUndo() const {
    return !draft_->is_full && facts_.change != delta::Change::kXor;
  }

  Status CheckOptions() {
    const auto* const layout =
        std::ranges::find(kLayouts, options_.layout, &VersionLayout::name);
    if (layout == std::end(kLayouts)) {
      return Wrong(fmt::format("layout {}: expected weight_v or v",
                               Quote(options_.layout)));
    }
    layout_ = layout;
    HAULWAY_ASSIGN(facts_,
                   NewVersionFacts(layout_->id(1), layout_->id(0),
                                   options_.encoding, options_.checksum, {}));
    if (!is_local_ && !root_.starts_with("s3://")) {
      return Status(Code::kUnsupported,
                    "versions are written to local folders and s3:// names")
          .Of(ShownName(root_));
    }
    return Status();
  }

  Status TakeLock() {
    const std::string path = fmt::format("{}/{}", root_, kLockName);
    UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
    if (fd.get() < 0) {
      return Status::FromErrno(errno, "cannot open the lock").Of(path);
    }
    const int locked =
        RetryInterrupted([&] { return ::flock(fd.get(), LOCK_EX | LOCK_NB); });
    if (locked != 0 && errno == EWOULDBLOCK) {
      return Status(Code::kUnavailable,
                    "another publisher writes versions to the folder: one "
                    "publisher has a folder until it is closed or its process "
                    "ends")
          .Of(root_);
    }
    if (locked != 0 && !HasNoLocks(errno)) {
      return Status::FromErrno(errno, "cannot lock the folder").Of(path);
    }
    lock_ = std::move(fd);
    return Status();
  }

  // Fails if the lock, and so the versions, were removed: nobody could open a
  // version on those, and another publisher may have the folder.
  Status CheckLock() const {
    struct stat facts;
    if (lock_.get() < 0 || ::fstat(lock_.get(), &facts) != 0 ||
        facts.st_nlink > 0) {
      return Status();
    }
    return Status(Code::kNotFound,
                  "the folder was removed while the publisher had it: open a "
                  "new publisher")
        .Of(root_);
  }

  // Sets newest_ to the newest whole version, or to the base.
  Status FindNewest() {
    std::vector<WeightVersion> versions;
    auto found = ListVersions(root_, options_.remote);
    if (found.ok()) {
      versions = *std::move(found);
    } else if (found.status().code() != Code::kNotFound) {
      return found.status();
    }
    const WeightVersion* newest = nullptr;
    for (const WeightVersion& one : versions) {
      if (one.complete) newest = &one;
    }
    for (const WeightVersion& one : versions) {
      if (one.complete || (newest != nullptr && one.number < newest->number)) {
        continue;
      }
      HAULWAY_TRY(ClearLeftover(one));
    }
    if (newest == nullptr) {
      newest_ = base_;
      return Status();
    }
    if (newest->id != layout_->id(newest->number)) {
      return Wrong(fmt::format(
                       "the newest version is called {}: expected {}; choose "
                       "the layout of these versions, or another folder",
                       Quote(newest->id), layout_->id(newest->number)))
          .Of(root_);
    }
    version_ = newest->number;
    newest_ = fmt::format("{}/{}", newest->path, kVersionIndexName);
    return Status();
  }

  // Removes what a killed publisher left below an s3:// name: shards without an
  // index. Refuses a version that another writer did not complete.
  Status ClearLeftover(const WeightVersion& version) const {
    if (!leads_) return Status();
    if (!is_local_ && version.missing.front() == kVersionIndexName) {
      const auto index = OpenSource(
          fmt::format("{}/{}", version.path, kVersionIndexName), sources_);
      if (index.status().code() == Code::kNotFound) {
        return RemoveVersionFolder(version.path, options_.remote);
      }
    }
    return Wrong(fmt::format("version {} is not complete: it lacks {}; "
                             "complete it, or remove its folder",
                             Quote(version.id), Quote(version.missing.front())))
        .Of(version.path);
  }

  Result<std::shared_ptr<const Checkpoint>> OpenNewest() const {
    HAULWAY_ASSIGN(auto source, OpenSource(newest_, sources_));
    return Checkpoint::Open(std::move(source));
  }

  // Reads names, dtypes and shapes of the newest version.
  Status ReadNames() {
    HAULWAY_ASSIGN(const auto checkpoint, OpenNewest());
    return kept_.AddAll(*checkpoint);
  }

  Status LoadKept(std::vector<size_t> rows) {
    if (rows.empty()) return Status();
    HAULWAY_ASSIGN(const auto checkpoint, OpenNewest());
    return kept_.Load(*checkpoint, std::move(rows), threads());
  }

  Status CheckOpen() const {
    if (is_closed_) return Wrong("the publisher is closed").Of(root_);
    if (has_left_) {
      return Wrong("the publisher belongs to another process").Of(root_);
    }
    if (is_broken_) {
      return Wrong(
                 "a version could not be taken back: open the folder with a "
                 "new publisher")
          .Of(root_);
    }
    return Status();
  }

  // Returns a failure to write a version. There are no locks below an s3://
  // name: a file that is there shows another publisher.
  Status OfOther(Status status) const {
    if (is_local_ || status.code() != Code::kInvalidArgument) return status;
    return Status(Code::kUnavailable,
                  fmt::format(
                      "another publisher writes version {}, or has written "
                      "it ({}): end one of the two, and open the folder "
                      "with a new publisher",
                      layout_->id(version_ + 1), status.message()))
        .Of(ShownName(root_));
  }

  Status CheckBegun() const {
    HAULWAY_TRY(CheckOpen());
    return draft_ == nullptr ? Wrong("no version was begun") : Status();
  }

  Status Differs(std::string_view name, std::string_view what) const {
    return Status(Code::kMismatch,
                  fmt::format("tensor {} {}: receivers know the tensors of the "
                              "last full version only; publish a full version "
                              "(full=True) to change them",
                              Quote(name), what))
        .Of(root_);
  }

  // Checks a tensor and adds it to the draft.
  Result<AddedTensor*> AddFacts(const TensorToWrite& tensor) {
    auto added = std::make_unique<AddedTensor>();
    added->facts = {.name = tensor.name,
                    .dtype = tensor.dtype,
                    .shape = tensor.shape,
                    .checksum = {}};
    HAULWAY_ASSIGN(added->bytes, BytesOfShape(tensor.dtype, tensor.shape));
    HAULWAY_TRY(CheckLength(tensor, added->bytes));
    if (!draft_->numbers.try_emplace(tensor.name, draft_->added.size())
             .second) {
      return Wrong(fmt::format("two tensors are named {}", Quote(tensor.name)));
    }
    const auto found = kept_.Find(tensor.name);
    if (!found.has_value()) {
      if (!draft_->may_differ) return Differs(tensor.name, "is new");
    } else {
      const KeptTensor& old = kept_[*found];
      const bool is_cast = old.dtype != tensor.dtype;
      const bool is_reshaped = old.shape != tensor.shape;
      if (!draft_->may_differ && is_cast) {
        return Differs(tensor.name,
                       fmt::format("has another dtype (expected {}, found {})",
                                   Name(old.dtype), Name(tensor.dtype)));
      }
      if (!draft_->may_differ && is_reshaped) {
        return Differs(tensor.name, "has another shape");
      }
      if (!is_cast && !is_reshaped) added->kept = *found;
    }
    draft_->added.push_back(std::move(added));
    return draft_->added.back().get();
  }

  // Takes the bytes of a tensor.
  Status Take(const TensorToWrite& tensor, AddedTensor* added) {
    const std::span<const std::byte> bytes(tensor.bytes.bytes, added->bytes);
    delta::Checksum checksum(facts_.checksum);
    if (added->kept == kNotKept) {
      HAULWAY_ASSIGN(added->fresh, AllocateBuffer(added->bytes));
      std::ranges::copy(bytes, added->fresh.mutable_bytes().begin());
      checksum.Update(added->fresh.bytes());
      added->facts.checksum = checksum.Finish();
      return Status();
    }
    added->changed = std::make_unique<SpooledChange>();
    added->changed->name = tensor.name;
    HAULWAY_ASSIGN(auto writer, writers_.Take());
    auto differs = Compare(bytes, writer.get(), &checksum, added);
    writers_.Return(std::move(writer));
    if (!differs.ok()) return differs.status();
    if (!*differs) {
      added->changed.reset();
      return Status();
    }
    added->changed->checksum = checksum.Finish();
    added->facts.checksum = added->changed->checksum;
    return Status();
  }

  // Spools the frames of a kept tensor, and makes it the new one.
  Result<bool> Compare(std::span<const std::byte> bytes,
                       delta::ChangeWriter* writer, delta::Checksum* checksum,
                       AddedTensor* added) {
    FrameSpool& spool = draft_->spool;
    const std::span<std::byte> kept =
        kept_[added->kept].memory->mutable_bytes();
    FrameSpool::Frame* frame = &added->changed->frame;
    const auto out = [&](std::span<const std::byte> part) {
      return spool.Append(frame, part);
    };
    if (HasOwnUndo()) {
      HAULWAY_ASSIGN(const bool differs,
                     writer->Write(facts_.change, kept, bytes, checksum, out));
      if (!differs) return false;
      HAULWAY_TRY(spool.Finish(frame));
      frame = &added->undo;
      checksum = nullptr;
    }
    HAULWAY_ASSIGN(const bool differs,
                   writer->Replace(kept, bytes, checksum, out, &added->done));
    HAULWAY_TRY(spool.Finish(frame));
    return differs;
  }

  // Returns the shards of this process, as rows of the draft.
  std::vector<ShardRows> Split() const {
    std::vector<size_t> rows;
    std::vector<uint64_t> sizes(draft_->added.size());
    for (size_t i = 0; i < draft_->added.size(); ++i) {
      const AddedTensor& one = *draft_->added[i];
      if (!one.is_written_here ||
          (!draft_->is_full && one.changed == nullptr)) {
        continue;
      }
      sizes[i] = draft_->is_full ? one.bytes : one.changed->frame.size();
      rows.push_back(i);
    }
    return SplitIntoShards(rows, sizes, options_.shard_bytes);
  }

  // Copies the files of the base's folder that hold no weights: a receiver
  // replaces all files of a model by those of a full version.
  Status CopyPlainFiles() const {
    std::string folder = base_;
    while (folder.size() > 1 && folder.ends_with('/')) folder.pop_back();
    if (folder.empty() || !HasFolders(folder)) return Status();
    if (LocalPath(folder).has_value() ? !IsFolder(folder)
                                      : !base_.ends_with('/')) {
      return Status();
    }
    HAULWAY_ASSIGN(const std::vector<std::string> files,
                   ListFolder(folder + "/", Depth::kFolder, options_.remote));
    for (const std::string& file : files) {
      const std::string_view name = LastPart(file);
      if (!IsPlainFile(name)) continue;
      HAULWAY_ASSIGN(const auto source, OpenSource(file, sources_));
      HAULWAY_ASSIGN(const auto sink,
                     draft_->folder->OpenFile(std::string(name)));
      HAULWAY_TRY(sink->Begin(source->size()).status());
      std::vector<std::byte> piece;
      for (uint64_t at = 0; at < source->size(); at += piece.size()) {
        piece.resize(
            static_cast<size_t>(std::min<uint64_t>(kMiB, source->size() - at)));
        HAULWAY_TRY(source->ReadAt(at, piece));
        HAULWAY_TRY(sink->WriteAt(at, std::span<const std::byte>(piece)));
      }
      HAULWAY_TRY(sink->Commit(source->size()));
    }
    return Status();
  }

  // Keeps the tensors of a full version. Their names differ.
  void KeepOthers(std::span<const PublishedTensor> all) {
    KeptWeights kept;
    for (const PublishedTensor& facts : all) {
      KeptTensor one{
          .name = facts.name, .dtype = facts.dtype, .shape = facts.shape};
      const auto added = draft_->numbers.find(facts.name);
      if (added != draft_->numbers.end()) {
        AddedTensor& mine = *draft_->added[added->second];
        one.memory = mine.kept == kNotKept ? std::move(mine.fresh)
                                           : *kept_[mine.kept].memory;
      }
      const Status status = kept.Add(std::move(one));
      is_broken_ = is_broken_ || !status.ok();
    }
    kept_ = std::move(kept);
  }

  std::string root_;  // Without a slash at its end.
  const std::string base_;
  const VersionPublisherOptions options_;
  const bool leads_;
  bool is_local_ = false;
  SourceOptions sources_;
  const VersionLayout* layout_ = nullptr;
  delta::VersionFacts facts_;  // Encoding and checksum.
  UniqueFd lock_;

  uint64_t version_ = 0;
  std::string newest_;  // What holds the newest version.
  bool needs_base_ = false;
  KeptWeights kept_;
  ChangeWriters writers_;
  std::unique_ptr<Draft> draft_;
  bool is_broken_ = false;
  bool has_left_ = false;
  bool is_closed_ = false;
};

VersionPublisher::VersionPublisher(std::unique_ptr<State> state)
    : state_(std::move(state)) {}
VersionPublisher::~VersionPublisher() { state_->Discard(); }

Result<std::unique_ptr<VersionPublisher>> VersionPublisher::Open(
    std::string_view uri, std::string_view base,
    const VersionPublisherOptions& options) {
  return OrNoMemory([&]() -> Result<std::unique_ptr<VersionPublisher>> {
    auto state = std::make_unique<State>(std::string(uri), std::string(base),
                                         options, /*leads=*/true);
    HAULWAY_TRY(state->Open());
    return std::unique_ptr<VersionPublisher>(
        new VersionPublisher(std::move(state)));
  });
}

Result<std::unique_ptr<VersionPublisher>> VersionPublisher::Join(
    std::string_view uri, std::string_view base,
    const VersionPublisherOptions& options) {
  return OrNoMemory([&]() -> Result<std::unique_ptr<VersionPublisher>> {
    auto state = std::make_unique<State>(std::string(uri), std::string(base),
                                         options, /*leads=*/false);
    HAULWAY_TRY(state->Open());
    return std::unique_ptr<VersionPublisher>(
        new VersionPublisher(std::move(state)));
  });
}

bool VersionPublisher::needs_base() const { return state_->needs_base(); }
uint64_t VersionPublisher::version() const { return state_->version(); }
Status VersionPublisher::SetBase(std::span<const TensorToWrite> tensors) {
  return OrNoMemory([&] { return state_->SetBase(tensors); });
}
Status VersionPublisher::LoadAll() {
  return OrNoMemory([&] { return state_->LoadAll(); });
}
Result<bool> VersionPublisher::Begin(bool full) {
  return OrNoMemory([&] { return state_->Begin(full); });
}
Status VersionPublisher::Add(std::span<const TensorToWrite> tensors) {
  return OrNoMemory([&] { return state_->Add(tensors); });
}
std::vector<PublishedTensor> VersionPublisher::Added() const {
  return state_->Added();
}
Status VersionPublisher::CheckComplete(
    std::span<const PublishedTensor> all) const {
  return OrNoMemory([&] { return state_->CheckComplete(all); });
}
Status VersionPublisher::LeaveOut(std::span<const std::string> names) {
  return OrNoMemory([&] { return state_->LeaveOut(names); });
}
uint64_t VersionPublisher::shards() const { return state_->shards(); }
Result<std::string> VersionPublisher::EnterFolder(
    std::optional<std::string_view> place) {
  return OrNoMemory([&] { return state_->EnterFolder(place); });
}
Result<VersionPublisher::Written> VersionPublisher::WriteShards(
    uint64_t first, uint64_t count) {
  return OrNoMemory([&] { return state_->WriteShards(first, count); });
}
Result<WeightVersion> VersionPublisher::Commit(const Written& all) {
  return OrNoMemory([&] { return state_->Commit(all); });
}
void VersionPublisher::Accept(std::span<const PublishedTensor> all) {
  state_->Accept(all);
}
void VersionPublisher::Discard() { state_->Discard(); }
Status VersionPublisher::Prune() {
  return OrNoMemory([&] { return state_->Prune(); });
}
void VersionPublisher::Leave() { state_->Leave(); }
void VersionPublisher::Close() { state_->Close(); }

Result<WeightVersion> VersionPublisher::Publish(
    std::span<const TensorToWrite> state, bool full) {
  const auto publish = [&]() -> Result<WeightVersion> {
    HAULWAY_TRY(Begin(full).status());
    HAULWAY_TRY(Add(state));
    const std::vector<PublishedTensor> all = Added();
    HAULWAY_TRY(CheckComplete(all));
    HAULWAY_TRY(EnterFolder().status());
    HAULWAY_ASSIGN(const Written written, WriteShards(0, shards()));
    HAULWAY_ASSIGN(WeightVersion version, Commit(written));
    Accept(all);
    return version;
  };
  auto version = publish();
  if (!version.ok()) Discard();
  return version;
}

}  // namespace haulway
