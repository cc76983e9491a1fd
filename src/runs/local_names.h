// Hidden names of a local run, and how its folders get and lose their names.
//
// ".step-N.tmp-ID" is a step that is being saved, ".trash-ID" one that lost its
// name. The process that saves a step holds a lock (flock) on the file
// ".step-N.tmp-ID.lock" beside it, so that one without a lock is the leftover
// of a process that died.

#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/posix.h"
#include "haulway/status.h"

namespace haulway {

// Returns 16 hexadecimal digits that no other call returns.
std::string NewId();

// Makes a hidden folder for a step in the folder `root`, and its lock. Sets
// `path` to it.
Result<UniqueFd> MakeTemporary(const std::string& root, uint64_t step,
                               std::string* path);

// Fails with kInvalidArgument if `path` is there and is not the folder of a
// step that has a manifest: then another program made it.
Status CheckIsOurs(const std::string& path);

// Gives the folder `from` the name `to`. What had this name is moved to a
// hidden name, which `old` is set to, in the same step if the file system can.
Status TakeName(const std::string& root, const std::string& from,
                const std::string& to, std::string* old);

// Takes the name of a file or folder away, in one step, and then removes it.
// Returns false if it was not there.
Result<bool> MoveAway(const std::string& root, const std::string& path);

// Removes a file or folder, and what is below it; links are not followed. What
// is not there, or is removed by another process, is none.
Status RemoveTree(const std::string& path);

// Removes the lock of the hidden folder `path`, which this process holds.
void RemoveLock(const std::string& path);

// Removes what killed saves and prunes left in the folder `root`: steps that
// lost their names, and hidden folders of steps up to `newest` that no process
// holds.
Status SweepSteps(const std::string& root, std::optional<uint64_t> newest);

}  // namespace haulway
