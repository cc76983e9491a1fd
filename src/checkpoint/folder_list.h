// Presents the files of a folder as one source: its bytes are a listing, and
// the files are its neighbours.

#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "haulway/open.h"
#include "haulway/source.h"
#include "ranks/rank_list.h"

namespace haulway {

// Lists `files`, names that OpenSource() takes, of which each begins with
// `folder`. They are opened with `options` when they are asked for. Messages
// call the source `name`.
std::shared_ptr<const ByteSource> ListFolderFiles(
    ranks::ListKind kind, std::string name, std::string folder,
    const std::vector<std::string>& files, const SourceOptions& options);

}  // namespace haulway
