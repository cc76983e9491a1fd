// A folder that a checkpoint is written to, with the file names that
// huggingface_hub uses.

#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "haulway/checkpoint.h"
#include "haulway/index.h"
#include "haulway/sink.h"
#include "haulway/status.h"

namespace haulway::convert {

// Returns whether `path` is a folder: it ends in '/', or a folder exists there.
// Among object stores, only s3:// has folders; a Redis prefix is one
// checkpoint.
bool IsFolder(const std::string& path);

// A ModelFolder holds one checkpoint: a file ("model.safetensors"; for torch
// "pytorch_model.bin"), its shards ("model-00001-of-00003.safetensors") and
// their index, or a directory of torch.distributed.checkpoint.
class ModelFolder {
 public:
  ModelFolder(std::string folder, Format format, Durability durability);
  // Removes the folders that Make() created and that are empty.
  ~ModelFolder();
  ModelFolder(const ModelFolder&) = delete;
  ModelFolder& operator=(const ModelFolder&) = delete;

  // The path of a single file, from which the names of shards and index derive.
  // For a directory, the folder with its '/'.
  const std::string& path() const { return path_; }
  // Fails with kInvalidArgument if a file of `from` is in the folder under a
  // name that this checkpoint could use.
  Status CheckSource(const Checkpoint& from) const;
  // Returns whether `from` lies in this folder.
  bool IsFolderOf(const Checkpoint& from) const;
  // Creates the folder, and those above it, if they do not exist. Does nothing
  // for a URL.
  Status Make();
  // Returns the files of an older checkpoint other than `written`: the index,
  // the single file, then shards of another split.
  std::vector<std::string> Others(
      const std::vector<std::string>& written) const;

 private:
  bool IsOurs(std::string_view name) const;
  // Returns the paths of files with such names, sorted. Empty for a URL.
  std::vector<std::string> Found() const;

  // Syncs a folder, if the checkpoint must be durable.
  Status Sync(const std::string& folder) const;

  const std::string folder_;  // With its '/'.
  const Durability durability_;
  const bool is_directory_;
  const std::string stem_, ending_;
  const std::string path_;
  std::vector<std::filesystem::path> made_;  // By Make(); the deepest first.
};

}  // namespace haulway::convert
