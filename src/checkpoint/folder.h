// Folders of any scheme.

#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "haulway/open.h"
#include "haulway/status.h"

namespace haulway {

enum class Depth : uint8_t {
  kFolder,     // What lies in the folder itself.
  kRecursive,  // And in all below.
};

// The regular files of a folder, as names that open them, sorted. What links
// lead to counts.
using FolderLister = Result<std::vector<std::string>> (*)(
    std::string_view folder, Depth depth, const RemoteOptions& remote);

// That of a path.
Result<std::vector<std::string>> ListPath(std::string_view folder, Depth depth,
                                          const RemoteOptions& remote);

// That of the scheme which the name has. Fails with kUnsupported where it has
// no folders, and as its lister does.
Result<std::vector<std::string>> ListFolder(std::string_view folder,
                                            Depth depth,
                                            const RemoteOptions& remote);

// The names of the files that hold the one checkpoint of a folder: of the file
// that opens it, or of all files that processes wrote for torch.distributed.
// checkpoint as safetensors. Fails as FindCheckpoint().
Result<std::vector<std::string>> FindFiles(std::string_view folder,
                                           const RemoteOptions& remote);

}  // namespace haulway
