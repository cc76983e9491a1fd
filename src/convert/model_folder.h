// A folder that a checkpoint is written into, under the names that
// huggingface_hub gives its files.

#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "haulway/checkpoint.h"
#include "haulway/index.h"
#include "haulway/status.h"

namespace haulway::convert {

// Whether `path` names a folder: it ends in '/', or a folder is there. In
// object stores only s3:// has such; a prefix in Redis is one checkpoint.
bool IsFolder(const std::string& path);

// A ModelFolder holds one checkpoint of a format: a file
// ("model.safetensors"; "pytorch_model.bin" of torch), or its shards
// ("model-00001-of-00003.safetensors") and their index; or it is a directory of
// torch.distributed.checkpoint.
class ModelFolder {
 public:
  ModelFolder(std::string folder, Format format);

  // The path of a single file, which shards and index are named after; of a
  // directory, the folder with its '/'.
  const std::string& path() const { return path_; }
  // Fails with kInvalidArgument if a file of `from` lies in the folder under a
  // name that this checkpoint could have.
  Status CheckSource(const Checkpoint& from) const;
  // Makes the folder if it is not there. Does nothing for a URL.
  Status Make() const;
  // Removes what an older checkpoint of these names leaves beside `written`:
  // shards of another split, the file or the index. Returns the paths.
  Result<std::vector<std::string>> RemoveOthers(
      const std::vector<std::string>& written) const;

 private:
  bool IsOurs(std::string_view name) const;
  // Paths of the files of such names, sorted. Empty for a URL.
  std::vector<std::string> Found() const;

  const std::string folder_;  // With its '/'.
  const bool is_directory_;
  const std::string stem_, ending_;
  const std::string path_;
};

}  // namespace haulway::convert
