// Design: the files are written by whoever fills the folder, as they like.
// Publish() then syncs each and computes its digest, both at once, so that the
// digest takes no time beside a disk. A local step gets its name when all of it
// is on the disk. In a store, where nothing is renamed, the files of each save
// have a folder of their own, and the manifest, which names that, comes last.
// Files that are written through OpenFile() go to the store at once; only those
// that others put into the folder are first on the disk.

#include <fcntl.h>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "base/no_memory.h"
#include "base/posix.h"
#include "base/text.h"
#include "base/thread_pool.h"
#include "checkpoint/folder.h"
#include "haulway/folder.h"
#include "haulway/layout.h"
#include "haulway/machine.h"
#include "haulway/runs.h"
#include "io/file_system.h"
#include "io/model_names.h"
#include "io/temporary_file.h"
#include "runs/local_names.h"
#include "runs/run_folder.h"
#include "runs/run_manifest.h"
#include "runs/sound_entry.h"
#include "save/digested_sink.h"

namespace haulway {

namespace {

// Returns the time as "2026-11-29T08:00:00Z".
std::string Now() {
  return fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr)));
}

int ThreadsOfStep(const NewStep::Options& options) {
  return options.threads != 0 ? options.threads : UsableCpus();
}

Status SyncFile(const std::string& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (fd.get() < 0 || ::fsync(fd.get()) != 0) {
    return Status::FromErrno(errno, "cannot sync").Of(path);
  }
  return Status();
}

// The files of a folder, and its folders.
struct Content {
  std::vector<ManifestFile> files;
  std::vector<std::string> folders;
};

Status HoldsNothing(const std::string& folder) {
  return Status(Code::kInvalidArgument,
                "the folder of the step holds no file: expected the files of "
                "a checkpoint")
      .Of(folder);
}

Result<Content> ContentOf(const std::string& folder) {
  HAULWAY_ASSIGN(const RunFolder listed, RunFolder::List(folder, {}));
  Content content;
  for (const RunFile& file : listed.files()) {
    const auto wrong = [&](std::string_view what) {
      return Status(Code::kInvalidArgument,
                    fmt::format("{} {}: expected files and folders",
                                Quote(file.name), what))
          .Of(folder);
    };
    if (file.is_link) return wrong("is a symbolic link");
    if (file.is_other) return wrong("is neither a file nor a folder");
    if (!IsUtf8(file.name)) return wrong("is not a name in UTF-8");
    if (file.is_folder) {
      content.folders.push_back(file.name);
      if (file.name.starts_with('.')) return wrong("is a hidden folder");
    } else if (file.name != kRunManifestName) {
      content.files.push_back({.name = file.name, .bytes = file.bytes});
    }
  }
  return content;
}

// Sets the digests of files; syncs them, too, if `is_synced`.
Status DigestAll(const std::string& folder, int threads, bool is_synced,
                 std::vector<ManifestFile>* files) {
  const size_t count = files->size();
  // Syncing waits for the disk, digests for a processor.
  const size_t tasks = is_synced ? 2 * count : count;
  return ParallelFor(tasks, threads + 1, [&](uint64_t i) -> Status {
    ManifestFile& file = (*files)[i % count];
    const std::string path = fmt::format("{}/{}", folder, file.name);
    if (i >= count) return SyncFile(path);
    HAULWAY_ASSIGN(const auto source, OpenFileSource(path));
    file.bytes = source->size();
    HAULWAY_ASSIGN(file.sha256, DigestOfFile(*source, nullptr));
    return Status();
  });
}

// The files that were digested while they were written.
class Digests {
 public:
  // Digests what is written to `sink`, the file `name`.
  std::unique_ptr<ByteSink> Note(const std::string& name,
                                 std::unique_ptr<ByteSink> sink) {
    return MakeDigestedSink(
        std::move(sink), [this, name](uint64_t bytes, const Sha256Value& sum) {
          const std::lock_guard lock(mutex_);
          files_[name] = {.name = name, .bytes = bytes, .sha256 = sum};
        });
  }

  std::vector<ManifestFile> All() const {
    const std::lock_guard lock(mutex_);
    std::vector<ManifestFile> files;
    for (const auto& [name, file] : files_) files.push_back(file);
    return files;
  }

  // Moves the files that are as they were written from `files` to `known`.
  void Take(std::vector<ManifestFile>* files,
            std::vector<ManifestFile>* known) {
    const std::lock_guard lock(mutex_);
    std::erase_if(*files, [&](const ManifestFile& file) {
      const auto found = files_.find(file.name);
      if (found == files_.end() || found->second.bytes != file.bytes) {
        return false;
      }
      known->push_back(found->second);
      return true;
    });
  }

 private:
  mutable std::mutex mutex_;
  std::map<std::string, ManifestFile> files_ HAULWAY_GUARDED_BY(mutex_);
};

// Sets the digests of the files that are not in `digests`; syncs these, too, if
// `is_synced`.
Status Digest(const std::string& folder, int threads, bool is_synced,
              Digests* digests, std::vector<ManifestFile>* all) {
  std::vector<ManifestFile> known;
  if (digests != nullptr) digests->Take(all, &known);
  HAULWAY_TRY(DigestAll(folder, threads, is_synced, all));
  std::ranges::move(known, std::back_inserter(*all));
  std::ranges::sort(*all, {}, &ManifestFile::name);
  return Status();
}

// Writes a text to a file or object, completely or not at all.
Status WriteWhole(const std::string& name, std::string_view text,
                  const SinkOptions& options) {
  HAULWAY_ASSIGN(const auto sink, OpenSink(name, options));
  HAULWAY_TRY(sink->Begin(text.size()).status());
  HAULWAY_TRY(sink->WriteAt(0, std::as_bytes(std::span(text))));
  return sink->Commit(text.size());
}

Status PutFile(const std::string& path, const std::string& name,
               const NewStep::Options& options) {
  HAULWAY_ASSIGN(const auto source, OpenFileSource(path));
  SinkOptions sink_options;
  sink_options.remote = options.remote;
  HAULWAY_ASSIGN(const auto sink, OpenSink(name, sink_options));
  WriteOptions write;
  write.threads = options.threads;
  return Upload(*source, *sink, write).status();
}

// Seals a local folder: digests, the manifest, and everything on the disk.
Status Seal(const std::string& folder, const NewStep::Options& options,
            Digests* digests, RunManifest* manifest) {
  HAULWAY_ASSIGN(Content content, ContentOf(folder));
  if (content.files.empty()) return HoldsNothing(folder);
  const bool is_durable = options.durability == Durability::kFull;
  HAULWAY_TRY(Digest(folder, ThreadsOfStep(options), is_durable, digests,
                     &content.files));
  manifest->files = std::move(content.files);
  manifest->created = Now();
  SinkOptions sink;
  sink.file.durability = options.durability;
  HAULWAY_TRY(WriteWhole(fmt::format("{}/{}", folder, kRunManifestName),
                         RunManifestToJson(*manifest), sink));
  if (!is_durable) return Status();
  for (const std::string& inner : content.folders) {
    HAULWAY_TRY(SyncFolder(fmt::format("{}/{}", folder, inner)));
  }
  return SyncFolder(folder);
}

RunEntry EntryOf(std::string path, const RunManifest& manifest) {
  RunEntry entry{.path = std::move(path),
                 .step = manifest.step,
                 .layout = std::string(kRunLayoutWords[0]),
                 .good = true};
  for (const ManifestFile& file : manifest.files) entry.bytes += file.bytes;
  entry.metadata = manifest.metadata;
  return entry;
}

Status AlreadyPublished() {
  return Status(Code::kInvalidArgument,
                "the step was published or discarded before");
}

// A step whose files are collected in a local folder.
class CollectedStep : public NewStep {
 public:
  CollectedStep(uint64_t step, Options options)
      : step_(step), options_(std::move(options)) {}

  const std::string& folder() const override { return folder_; }

 protected:
  const uint64_t step_;
  const Options options_;
  const pid_t process_ = ::getpid();
  std::string folder_;
  Digests digests_;
  bool is_owner_ = false;  // Whether the folder is to be removed.
};

class LocalStep : public CollectedStep {
 public:
  LocalStep(std::string root, uint64_t step, Options options)
      : CollectedStep(step, std::move(options)), root_(std::move(root)) {}
  ~LocalStep() override { LocalStep::Discard(); }

  Result<std::unique_ptr<ByteSink>> OpenFile(
      const std::string& name, const FileSinkOptions& file) override {
    HAULWAY_ASSIGN(auto sink,
                   OpenFileSink(fmt::format("{}/{}", folder_, name), file));
    return digests_.Note(name, std::move(sink));
  }

  void Discard() override {
    if (!is_owner_ || ::getpid() != process_) return;
    is_owner_ = false;
    (void)RemoveTree(folder_);
    RemoveLock(folder_);
    lock_ = UniqueFd();
  }

  Status Begin() {
    HAULWAY_TRY(CheckIsOurs(Place()));
    std::error_code error;
    std::filesystem::create_directories(root_, error);
    if (error) {
      return Status::FromErrno(error.value(), "cannot make the folder")
          .Of(root_);
    }
    HAULWAY_ASSIGN(lock_, MakeTemporary(root_, step_, &folder_));
    is_owner_ = true;
    return Status();
  }

  Result<RunEntry> Publish(std::string_view format,
                           std::string_view metadata) override {
    return OrNoMemory([&]() -> Result<RunEntry> {
      if (!is_owner_) return AlreadyPublished();
      RunManifest manifest{.step = step_, .format = std::string(format)};
      manifest.metadata = metadata;
      HAULWAY_TRY(Seal(folder_, options_, &digests_, &manifest));
      const std::string path = Place();
      HAULWAY_TRY(CheckIsOurs(path));
      std::string old;
      HAULWAY_TRY(TakeName(root_, folder_, path, &old));
      is_owner_ = false;
      RemoveLock(folder_);
      lock_ = UniqueFd();
      if (options_.durability == Durability::kFull) {
        HAULWAY_TRY(SyncFolder(root_));
      }
      // The step is there; a leftover goes with the next save.
      if (!old.empty()) (void)RemoveTree(old);
      (void)SweepSteps(root_, step_);
      return EntryOf(path, manifest);
    });
  }

 private:
  std::string Place() const { return fmt::format("{}step-{}", root_, step_); }

  const std::string root_;
  UniqueFd lock_;
};

class RemoteStep : public CollectedStep {
 public:
  RemoteStep(std::string root, uint64_t step, Options options)
      : CollectedStep(step, std::move(options)),
        place_(fmt::format("{}step-{}/", root, step)),
        save_(fmt::format("{}{}", kSavePrefix, NewId())) {}
  ~RemoteStep() override { RemoteStep::Discard(); }

  Result<std::unique_ptr<ByteSink>> OpenFile(const std::string& name,
                                             const FileSinkOptions&) override {
    SinkOptions options;
    options.remote = options_.remote;
    const std::string object = fmt::format("{}{}/{}", place_, save_, name);
    HAULWAY_ASSIGN(auto sink, OpenSink(object, options));
    const std::lock_guard lock(mutex_);
    uploaded_.push_back(object);
    return digests_.Note(name, std::move(sink));
  }

  void Discard() override {
    if (!is_owner_ || ::getpid() != process_) return;
    is_owner_ = false;
    (void)RemoveTree(folder_);
    const std::lock_guard lock(mutex_);
    (void)RemoveFiles(uploaded_, options_.remote);
  }

  Status Begin() {
    HAULWAY_TRY(CheckIsOursInStore());
    std::string name = TemporaryFolder() + "/haulway-step-XXXXXX";
    if (::mkdtemp(name.data()) == nullptr) {
      return Status::FromErrno(errno, "cannot make the folder").Of(name);
    }
    folder_ = std::move(name);
    is_owner_ = true;
    return Status();
  }

  Result<RunEntry> Publish(std::string_view format,
                           std::string_view metadata) override {
    return OrNoMemory([&]() -> Result<RunEntry> {
      if (!is_owner_) return AlreadyPublished();
      HAULWAY_ASSIGN(Content content, ContentOf(folder_));
      HAULWAY_TRY(
          DigestAll(folder_, ThreadsOfStep(options_), false, &content.files));
      RunManifest manifest{.step = step_,
                           .format = std::string(format),
                           .created = Now(),
                           .save = save_,
                           .files = std::move(content.files)};
      manifest.metadata = metadata;
      const std::string save = fmt::format("{}{}/", place_, save_);
      for (const ManifestFile& file : manifest.files) {
        {
          const std::lock_guard lock(mutex_);
          uploaded_.push_back(save + file.name);
        }
        HAULWAY_TRY(PutFile(fmt::format("{}/{}", folder_, file.name),
                            save + file.name, options_));
      }
      for (ManifestFile& file : digests_.All()) {
        // One in the folder was sent after it.
        if (std::ranges::find(manifest.files, file.name, &ManifestFile::name) ==
            manifest.files.end()) {
          manifest.files.push_back(std::move(file));
        }
      }
      if (manifest.files.empty()) return HoldsNothing(folder_);
      std::ranges::sort(manifest.files, {}, &ManifestFile::name);
      const std::vector<std::string> old = FilesBefore();
      SinkOptions sink;
      sink.remote = options_.remote;
      HAULWAY_TRY(WriteWhole(place_ + std::string(kRunManifestName),
                             RunManifestToJson(manifest), sink));
      {
        const std::lock_guard lock(mutex_);
        uploaded_.clear();
      }
      Discard();
      // The step is there; a leftover goes with the next prune.
      (void)RemoveFiles(old, options_.remote);
      return EntryOf(save, manifest);
    });
  }

 private:
  // Fails with kInvalidArgument if there are objects below the name of the step
  // that no save of ours made.
  Status CheckIsOursInStore() const {
    const auto listed = ListSizes(place_, options_.remote);
    if (!listed.ok()) {
      // Who may only write cannot know.
      return listed.status().code() == Code::kPermissionDenied
                 ? Status()
                 : listed.status();
    }
    const std::string manifest = place_ + std::string(kRunManifestName);
    const std::string save = place_ + std::string(kSavePrefix);
    bool is_other = false;
    for (const ListedFile& file : *listed) {
      if (file.name == manifest) return Status();
      is_other = is_other || !file.name.starts_with(save);
    }
    if (!is_other) return Status();
    return Status(Code::kInvalidArgument,
                  fmt::format("cannot save the step: a folder without {} is "
                              "there, so another program made it",
                              kRunManifestName))
        .Of(ShownName(place_));
  }

  // Returns the files of the save that has been the step until now.
  std::vector<std::string> FilesBefore() const {
    std::vector<std::string> files;
    SourceOptions options;
    options.remote = options_.remote;
    const auto source =
        OpenSource(place_ + std::string(kRunManifestName), options);
    if (!source.ok() || (*source)->size() > kMostManifestBytes) return files;
    std::string json((*source)->size(), '\0');
    if (!(*source)->ReadAt(0, std::as_writable_bytes(std::span(json))).ok()) {
      return files;
    }
    const auto manifest = ParseRunManifest(json);
    if (!manifest.ok() || manifest->save.empty()) return files;
    for (const ManifestFile& file : manifest->files) {
      files.push_back(
          fmt::format("{}{}/{}", place_, manifest->save, file.name));
    }
    return files;
  }

  const std::string place_;
  const std::string save_;  // The folder of this save.
  std::mutex mutex_;
  // What goes if the step is not published.
  std::vector<std::string> uploaded_ HAULWAY_GUARDED_BY(mutex_);
};

template <class Step>
Result<std::unique_ptr<NewStep>> BeginAs(std::string root, uint64_t step,
                                         const NewStep::Options& options) {
  if (!root.ends_with('/')) root += '/';
  auto made = std::make_unique<Step>(std::move(root), step, options);
  HAULWAY_TRY(made->Begin());
  return std::unique_ptr<NewStep>(std::move(made));
}

}  // namespace

Result<std::unique_ptr<NewStep>> NewStep::Begin(std::string_view uri,
                                                uint64_t step,
                                                const Options& options) {
  return OrNoMemory([&]() -> Result<std::unique_ptr<NewStep>> {
    if (const auto local = LocalPath(uri)) {
      return BeginAs<LocalStep>(local->empty() ? "." : *local, step, options);
    }
    if (!HasFolders(uri)) {
      return Status(Code::kUnsupported,
                    "runs are saved to local folders and s3:// names")
          .Of(ShownName(uri));
    }
    return BeginAs<RemoteStep>(std::string(uri), step, options);
  });
}

Status WriteRunManifest(const std::string& folder, uint64_t step,
                        std::string_view format, std::string_view metadata,
                        const NewStep::Options& options) {
  return OrNoMemory([&]() -> Status {
    RunManifest manifest{.step = step, .format = std::string(format)};
    manifest.metadata = metadata;
    return Seal(folder, options, nullptr, &manifest);
  });
}

}  // namespace haulway
