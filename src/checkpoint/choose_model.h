// Chooses the checkpoint that a folder means, by the names of its files.

#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "haulway/status.h"

namespace haulway {

// Data files of a directory of torch.distributed.checkpoint, whose `.metadata`
// says what is in them.
inline constexpr std::string_view kDataFileSuffix = ".distcp";
// What opens a directory of torch.distributed.checkpoint: one that ranks saved
// together, and one that each saved on its own.
inline constexpr std::string_view kDirectoryNames[] = {".metadata",
                                                       "__0.metadata"};
// Returns whether the file opens a directory. For files of ranks, only the
// first does.
bool OpensDirectory(std::string_view name);
// Returns whether a save of such a directory left the file: data, or metadata
// that did not get its name.
bool IsOfUnendedSave(std::string_view name);

// Returns whether a file is named as one process of a training names what it
// writes.
bool IsOfProcess(std::string_view name);

// Returns whether a file has the suffix of a format, and is not by its name
// another thing than a model.
bool MayBeModel(std::string_view name);

// Returns the first of the names, quoted, for a message.
std::string ListedNames(std::span<const std::string> names);

// Returns the names, out of those of a folder's files, of the file that opens
// the checkpoint, or of all its parts in their order. `variant` as in
// SourceOptions. docs/opening.md has the rules.
//
// Fails with kNotFound if no file is a checkpoint, and then says which files
// are not; with kInvalidArgument, naming the candidates, if several are; with
// kMismatch if a part is missing; with kTruncated for a directory whose save
// did not end. Messages do not name the folder.
Result<std::vector<std::string>> ChooseModel(std::span<const std::string> names,
                                             std::string_view variant);

}  // namespace haulway
