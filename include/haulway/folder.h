// Folders of files: which names can be folders, the files of a folder page by
// page, and what they are to one another. ListCheckpoints() and ListFiles() of
// open.h return whole lists.

#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "haulway/open.h"
#include "haulway/status.h"

namespace haulway {

// Returns the path that `name` means on this machine: `name` itself if it has
// no scheme, and the path of a file:// URI. Returns nullopt for other schemes
// and for an invalid file:// URI.
HAULWAY_EXPORT std::optional<std::string> LocalPath(std::string_view name);
// Returns whether names like `name` can be folders that files are written to:
// true for paths, file:// and s3://, false for other schemes and for "-".
HAULWAY_EXPORT bool HasFolders(std::string_view name);

// Returns whether a file is named as one of several, but does not open the
// others: "model-00001-of-00002.safetensors".
HAULWAY_EXPORT bool IsNamedAsShard(std::string_view name);

// FolderFiles tells which files are checkpoints, and which are parts of a
// checkpoint that several files hold. Call Note() for all files of a folder
// before the other functions. Names are those that open the files; a folder is
// everything up to the last '/' of a name.
//
// The folder itself is a checkpoint if its only checkpoint is a set of files
// that no file opens: those in which processes of torch.distributed.checkpoint
// save safetensors, or shards without an index. It counts as one, too, if it
// holds the data of such processes without a `.metadata`: opening it then says
// that the save did not end. The first file of a GGUF model stands for all its
// files.
//
// For one thread at a time.
class HAULWAY_EXPORT FolderFiles {
 public:
  // `remote`: how indexes of shards at URLs are reached.
  explicit FolderFiles(RemoteOptions remote = {});

  void Note(const std::string& name);

  // Returns the folders that are checkpoints, as names that end in '/'.
  std::vector<std::string> Folders() const;
  // Returns whether a file is the temporary of a save, or a part of a
  // checkpoint for which another file or the folder stands.
  bool IsPart(const std::string& name) const;
  // Reads the indexes that were noted, for IsCheckpoint().
  void ReadIndexes();
  // Returns whether a file is a checkpoint: it has the suffix of a format or is
  // an index of shards, a name that ends in .index.json, and is neither a part
  // of a directory nor a shard of an index.
  bool IsCheckpoint(const std::string& name) const;

 private:
  struct Folder {
    std::string opened_by;  // The `.metadata` of a directory, or empty.
    bool has_data = false;  // Files that `.metadata` should open.
    uint64_t shards = 0;    // Files of processes, by their names.
    // The first file of each set of files that are named as parts.
    std::map<std::string, std::string, std::less<>> sets;
    uint64_t ranks = 0;   // Files of the processes of a training.
    uint64_t others = 0;  // Other checkpoints, indexes included.
  };

  static bool IsOne(const Folder& folder);

  RemoteOptions remote_;
  std::map<std::string, Folder, std::less<>> folders_;
  std::vector<std::string> unread_;  // Indexes.
  std::set<std::string> not_indexes_;
  std::set<std::string> shards_;  // That indexes name.
};

// Returns the files of a folder and its subfolders to call VerifyFound() for,
// sorted: those of ListFiles() but temporaries of saves, FolderFiles::Folders()
// in place of their parts. Fails as ListFiles() does.
HAULWAY_EXPORT Result<std::vector<std::string>> ListFilesToVerify(
    std::string_view folder, const RemoteOptions& remote);

// FolderPages gives the names of the files in a folder and its subfolders, one
// page at a time. Made by OpenFolder().
class HAULWAY_EXPORT FolderPages {
 public:
  virtual ~FolderPages() = default;

  // Returns the next names; none at the end. Fails as listing does.
  virtual Result<std::vector<std::string>> Next() = 0;
};

// Lists what ListFiles() lists. Names of a store come as the store lists them:
// in the order of their keys, if the store keeps to the protocol, and each page
// is asked for when Next() is called. Other folders have one page.
HAULWAY_EXPORT Result<std::unique_ptr<FolderPages>> OpenFolder(
    std::string_view folder, const RemoteOptions& remote = {});

}  // namespace haulway
