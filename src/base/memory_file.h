// Memory files (memfd): files without a name in any file system, that the
// kernel frees when the last process that holds them is gone.

#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "base/posix.h"
#include "haulway/status.h"

namespace haulway {

// An empty memory file that can be sealed. `label` is what /proc shows of it;
// at most 240 bytes.
Result<UniqueFd> CreateMemoryFile(const std::string& label);

// Makes its size and bytes final, for every process and whoever asks. Fails
// with kUnavailable while some mapping could still write to it.
Status SealMemoryFile(int fd);

// Whether SealMemoryFile() was called on it.
bool IsSealed(int fd);

// The same file by another descriptor, that can only be read from.
Result<UniqueFd> ReopenForReading(int fd);

// Calls `visit` with each descriptor of a memory file whose label begins so, as
// "/proc/PID/fd/N", in all processes that this one may look into.
Status VisitMemoryFiles(
    std::string_view label_prefix,
    const std::function<void(uint32_t pid, const std::string& path)>& visit);

// Opens for reading a memory file of that label which some process of this
// user holds; `likely_pid` is asked first. Finds processes that this one may
// look into: those of the same user, in the same PID namespace. Fails with
// kNotFound, and kPermissionDenied if only another user's was found.
Result<UniqueFd> FindMemoryFile(std::string_view label, uint64_t likely_pid);

}  // namespace haulway
