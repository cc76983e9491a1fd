// Lists folders of any scheme.

#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "haulway/open.h"
#include "haulway/status.h"

namespace haulway {

enum class Depth : uint8_t {
  kFolder,     // Only the folder itself.
  kRecursive,  // The folder and all folders below it.
};

// Lists the regular files of a folder, as names that can be opened, sorted.
// Files that symbolic links point to are included.
using FolderLister = Result<std::vector<std::string>> (*)(
    std::string_view folder, Depth depth, const RemoteOptions& remote);

// Lists a folder of the file system.
Result<std::vector<std::string>> ListPath(std::string_view folder, Depth depth,
                                          const RemoteOptions& remote);

// Lists a folder with the lister of the name's scheme. Fails with kUnsupported
// if the scheme has no folders, and as the lister does.
Result<std::vector<std::string>> ListFolder(std::string_view folder,
                                            Depth depth,
                                            const RemoteOptions& remote);

// A file, by the name that opens it.
struct ListedFile {
  std::string name;
  uint64_t bytes = 0;
};

// Lists the files below a URL, at any depth, sorted by name. Fails with
// kUnsupported if the scheme does not list sizes, and as requests do.
Result<std::vector<ListedFile>> ListSizes(std::string_view uri,
                                          const RemoteOptions& remote);

// Removes files of one scheme; one that is not there is none. Fails with
// kUnsupported if the scheme cannot, and as the system and requests do; then
// any of them may be left.
Status RemoveFiles(std::span<const std::string> names,
                   const RemoteOptions& remote);

// Returns the files of the one checkpoint in a folder: the file that opens it,
// or all its parts if no file does. Fails as FindCheckpoint() does.
Result<std::vector<std::string>> FindFiles(std::string_view folder,
                                           const RemoteOptions& remote,
                                           std::string_view variant);

}  // namespace haulway
