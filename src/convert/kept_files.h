// The finished files of a set that is not finished.

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/posix.h"
#include "base/sha256.h"
#include "haulway/sink.h"
#include "haulway/status.h"

namespace haulway::convert {

// KeptFiles are the first files of a set, each whole, in the hidden folder
// ".haulway-convert" of the folder that they are for. They stay there if the
// process ends before the set is committed, and the next run goes on behind
// them. A journal in the hidden folder lists them in the order in which they
// were written, with digests.
//
// Threads: one at a time.
class KeptFiles {
 public:
  // Opens the hidden folder in `folder`, and makes it if it is not there. Fails
  // with kUnavailable if another process uses it, kPermissionDenied if it
  // belongs to another user, and as making it does.
  static Result<std::unique_ptr<KeptFiles>> Open(const std::string& folder,
                                                 Durability durability);
  // Removes the hidden folder of a process that ended. One that is used stays.
  static void Remove(const std::string& folder);

  // Returns whether the next file, which has this name (without control
  // characters), is kept. Reads all of
  // it: if it is not as it was written, it and the files after it are not kept
  // any more. `plan`: the digest of all that its bytes depend on. Fails with
  // kInvalidArgument if another file was planned in its place, and with
  // kCancelled.
  Result<bool> HasNext(const std::string& name, const Sha256Value& plan,
                       const std::atomic<bool>* cancel);
  // Opens a sink for the next file. It is kept once Keep() returns, after
  // Commit().
  Result<std::unique_ptr<ByteSink>> Begin(const std::string& name,
                                          const Sha256Value& plan);
  Status Keep();

  std::string PathOf(std::string_view name) const;
  // Removes the hidden folder. Call it when the set is committed.
  void Finish();

 private:
  struct Entry {
    std::string digest;  // Both are hexadecimal.
    std::string plan;
    uint64_t bytes = 0;
    std::string name;
    uint64_t end = 0;  // Offset behind its line.
  };

  KeptFiles(std::string folder, UniqueFd journal, Durability durability)
      : folder_(std::move(folder)),
        journal_(std::move(journal)),
        durability_(durability) {}

  Status ReadJournal();
  // Returns whether the file is as it was written.
  Result<bool> IsWhole(const Entry& entry,
                       const std::atomic<bool>* cancel) const;
  // Keeps the first `count` files only.
  Status Forget(size_t count);

  const std::string folder_;  // The hidden one, with its '/'.
  const UniqueFd journal_;    // Locked.
  const Durability durability_;
  std::vector<Entry> entries_;
  size_t next_ = 0;
  Entry begun_;
};

}  // namespace haulway::convert
