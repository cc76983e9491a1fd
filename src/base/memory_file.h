// Memory files (memfd): files without a name in any file system. The kernel
// frees them when the last process that holds them closes them.

#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "base/posix.h"
#include "haulway/status.h"

namespace haulway {

// Creates an empty memory file that can be sealed. `label`: the name shown in
// /proc, at most 240 bytes.
Result<UniqueFd> CreateMemoryFile(const std::string& label);

// Makes size and content immutable for every process. Fails with kUnavailable
// while a writable mapping exists.
Status SealMemoryFile(int fd);

// Returns whether the file has been sealed by SealMemoryFile().
bool IsSealed(int fd);

// Opens the same file again, read-only.
Result<UniqueFd> ReopenForReading(int fd);

// Calls `visit` with the path "/proc/PID/fd/N" of each descriptor of a memory
// file whose label begins with `label_prefix`, in all processes that this one
// may inspect.
Status VisitMemoryFiles(
    std::string_view label_prefix,
    const std::function<void(uint32_t pid, const std::string& path)>& visit);

// Opens, read-only, the memory file with that label that some process of this
// user holds. Process `likely_pid` is searched first. Only processes of the
// same user in the same PID namespace are found. Fails with kNotFound, or with
// kPermissionDenied if only another user's file was found.
Result<UniqueFd> FindMemoryFile(std::string_view label, uint64_t likely_pid);

// Returns the failure of a call that reserves `bytes` of shared memory: kLimit,
// with what is available, if there is not enough.
Status NoSharedMemory(int os_error, const char* what, uint64_t bytes);

}  // namespace haulway
