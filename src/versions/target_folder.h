// A folder to which versions of weights are applied.

#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/posix.h"
#include "haulway/sink.h"
#include "haulway/status.h"

namespace haulway {

// Where the bytes of a tensor lie in a target.
struct TargetTensor {
  uint32_t file = 0;  // Row of TargetTensors::files.
  uint64_t offset = 0;
  uint64_t bytes = 0;
};

struct TargetTensors {
  std::vector<std::string> files;  // Names in the folder.
  std::map<std::string, TargetTensor, std::less<>> tensors;
};

// A TargetFolder holds the lock of a target during its lifetime.
class TargetFolder {
 public:
  // Makes the folder if there is none, and waits for its lock. Fails with
  // kUnsupported if the file system has no locks, and with kCancelled.
  static Result<TargetFolder> Lock(std::string path, Durability durability,
                                   const std::atomic<bool>* cancel);
  TargetFolder(TargetFolder&&) = default;
  ~TargetFolder();

  const std::string& path() const { return path_; }
  Durability durability() const { return durability_; }
  // Returns the path of a file of the folder.
  std::string In(std::string_view name) const;
  // The folder of an update, which is there, and whole, while the update
  // changes the target; and its name before.
  std::string update() const;
  std::string new_update() const;

  // Returns the version that the target states; nullopt if it states none.
  // Fails with kCorrupt if what states it is damaged.
  Result<std::optional<std::string>> Version() const;
  Status SetVersion(std::string_view version) const;
  Status ForgetVersion() const;

  // States the version that the target holds while it is not yet durable, and
  // until the machine stops. ForgetVersion() must follow where SetVersion()
  // came before.
  Status Hold(std::string_view version, Durability durability) const;
  // Returns the version that Hold() stated; nullopt if there is none. Fails
  // with kMismatch if the machine was started since: nobody knows the bytes
  // then.
  Result<std::optional<std::string>> Held() const;
  // Makes the files of weights durable if they must be, states the version, and
  // takes back what Hold() stated.
  Status Settle(std::string_view version) const;
  Status Release() const;

  // Returns the names of the regular files, hidden ones left out, sorted.
  Result<std::vector<std::string>> Files() const;

  // Makes an empty folder new_update().
  Status BeginUpdate() const;
  // Gives it the name update(), in place of another one.
  Status CommitUpdate(Durability durability) const;
  // Removes new_update().
  Status DropUpdate() const;
  // Removes both.
  Status EndUpdate() const;

  // Writes a file of new_update() with a line for each text. Fails with
  // kUnsupported for a text of several lines.
  Status WriteLines(std::string_view name,
                    const std::vector<std::string>& lines) const;
  // Reads such a file of update().
  Result<std::vector<std::string>> ReadLines(std::string_view name) const;

  // Syncs a folder if the target must survive a loss of power.
  Status Sync(const std::string& folder) const;

 private:
  TargetFolder(std::string path, Durability durability, UniqueFd lock)
      : path_(std::move(path)),
        durability_(durability),
        lock_(std::move(lock)) {}

  std::string InSync(std::string_view name) const;

  std::string path_;
  Durability durability_;
  UniqueFd lock_;
};

// Finds the tensors of the target: those in the files of its index or, without
// one, in all its safetensors files. Fails with kMismatch if two files have a
// tensor of one name, and as opening the files does.
Result<TargetTensors> FindTargetTensors(const TargetFolder& target);

}  // namespace haulway
