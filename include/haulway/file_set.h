// A FileSet is several files that become visible as one: the shards of a model
// and their index, or a directory of torch.distributed.checkpoint.
//
// A reader sees all of the old files, all of the new ones, or that some are
// missing, never both. The last file that is added opens the others.
// If another file of the set has a name that is taken, the old files lose their
// names first, the one that opens them before all others; then the new ones
// take theirs, in the reverse order. If that fails, the old ones get theirs
// back. A process that dies in between leaves a set without the file that opens
// it. If no such name is taken, the set is always there: the last file's name
// passes from the old file to the new one.
//
// A lock on the folder keeps other sets out meanwhile. It cannot do so between
// machines that share a network file system. There, if another set has taken a
// name of this one, the last file is removed, and Commit() fails.
//
// Threads: a FileSet is used by one thread at a time, its sinks as any sink.

#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "haulway/sink.h"
#include "haulway/status.h"

namespace haulway {

// What an object store holds in place of an index while its shards are
// replaced, one after another.
inline constexpr std::string_view kUnfinishedIndex =
    "{\"haulway_unfinished\": \"a save of these shards goes on, or did not "
    "end: "
    "save again\"}";

// The name whose hidden file, ".haulway-set.PID-NUMBER.haulway-tmp", is in a
// folder while files of a set take their names there that no file opens. A
// reader may find a part of the set then, and after the process died.
inline constexpr std::string_view kOpenSet = "haulway-set";

class HAULWAY_EXPORT FileSet {
 public:
  explicit FileSet(Durability durability = Durability::kFull);
  FileSet(const FileSet&) = delete;
  FileSet& operator=(const FileSet&) = delete;
  // Leaves no trace of files that Commit() did not make visible.
  ~FileSet();

  // Adds a local file. The Commit() of the sink only says that the file is
  // complete. A file of a set is never overwritten in place. Fails as
  // OpenFileSink() does, and with kUnsupported for what is no regular file.
  Result<std::unique_ptr<ByteSink>> AddFile(std::string path,
                                            FileSinkOptions options = {});
  // Adds any other sink, such as that of an upload. It takes its name in the
  // same order, but the name is not taken from an older file before.
  std::unique_ptr<ByteSink> AddSink(std::unique_ptr<ByteSink> sink);

  // Adds a local file that another process wrote, in a set of its own that it
  // prepared and does not commit, but keeps until this one is committed.
  // `temporary`: its name there, in the folder of `path`. Fails if it is gone.
  Status AddWritten(std::string path, std::string temporary);
  // Returns the name that each local file has between Prepare() and Commit(),
  // in the order in which they were added.
  std::vector<std::string> TemporaryNames() const;

  // Does the part of Commit() that takes long, as ByteSink::Prepare().
  // Optional.
  Status Prepare();

  // Returns other files that a set replaces, those that open it first.
  using OldFiles = std::function<Result<std::vector<std::string>>()>;

  // When the other files of the old set lose their names, if none of its names
  // is taken: at once, or when the new files have theirs. kFirst is for sets
  // that no file opens, whose readers take all files that they find. A hidden
  // file tells readers of such a set that it is not whole.
  enum class OldGo { kLast, kFirst };

  // Makes all files visible. Call once, when all are complete. The files that
  // `old` returns go, too; it is called when no other set is being made visible
  // in the folder. Fails as `old` and ByteSink::Commit() do, and with
  // kUnavailable if another set becomes visible meanwhile.
  // A failure leaves no trace of the files.
  Status Commit(const OldFiles& old = nullptr, OldGo go = OldGo::kLast);

 private:
  class Member;
  class LateSink;

  std::unique_ptr<ByteSink> Add(std::shared_ptr<Member> member);
  Status CommitAll(const OldFiles& old, OldGo go);
  Status TakeNames();
  Status SyncFolders() const;

  const Durability durability_;
  std::vector<std::shared_ptr<Member>> members_;
};

}  // namespace haulway
