// A checkpoint in shared memory: loaded once, used by any number of processes.
//
// LoadShared() loads into a memory file (memfd) of its own and seals it:
// from then on nobody can change it, whoever maps it. Its handle is a short
// text, to be given to other processes however one likes. AttachShared() maps
// the same memory read-only, which takes as long as parsing the index.
//
// The memory lives as long as, in any process, a SharedCheckpoint or a Buffer
// of one does, and so long the handle works: whichever process is left serves
// it, without doing anything. The kernel frees it when the last is gone, also
// if all of them are killed.
//
// Who may attach: processes of the same user that see the others in /proc,
// so in the same PID namespace. What is attached is taken for untrusted, and
// checked as a file is.
//
// Threads: a SharedCheckpoint is immutable; use it from any number of threads.

#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "haulway/buffer.h"
#include "haulway/checkpoint.h"
#include "haulway/export.h"
#include "haulway/load.h"
#include "haulway/source.h"
#include "haulway/status.h"

namespace haulway {

struct SharedLoadOptions {
  OpenOptions open = {};
  LoadOptions load = {};  // `allocate` has no effect.
  // Which tensors to load, by name; null: all, and the whole object.
  std::function<bool(std::string_view name)> wanted = nullptr;
};

class HAULWAY_EXPORT SharedCheckpoint {
 public:
  SharedCheckpoint(const SharedCheckpoint&) = delete;
  SharedCheckpoint& operator=(const SharedCheckpoint&) = delete;
  ~SharedCheckpoint();

  // Its index; of the attached one, only that can be read.
  const std::shared_ptr<const Checkpoint>& checkpoint() const {
    return checkpoint_;
  }
  // Parallel to the storages of the index, not writable; empty where a storage
  // was not wanted. Memory that is mapped without the right to write: writing
  // to it regardless ends the process.
  const std::vector<Buffer>& buffers() const { return buffers_; }
  // Rows of the index's entries that were wanted; nullopt: all.
  const std::optional<std::vector<uint32_t>>& entries() const {
    return entries_;
  }
  // For AttachShared(), as often as one likes.
  const std::string& handle() const { return handle_; }
  uint64_t mapped_bytes() const { return mapped_bytes_; }
  const LoadStats& stats() const { return stats_; }  // Zeros if attached.

 private:
  friend class SharedCheckpointBuilder;
  SharedCheckpoint() = default;

  std::shared_ptr<const Checkpoint> checkpoint_;
  std::vector<Buffer> buffers_;
  std::optional<std::vector<uint32_t>> entries_;
  std::string handle_;
  uint64_t mapped_bytes_ = 0;
  LoadStats stats_;
};

// Opens and loads. Fails as Checkpoint::Open() and LoadStorages() do, with
// kLimit if the system has no memory to share.
HAULWAY_EXPORT Result<std::shared_ptr<const SharedCheckpoint>> LoadShared(
    std::shared_ptr<const ByteSource> source,
    const SharedLoadOptions& options = {});

// Maps what another process, or this one, loaded. `options` must be those that
// it was opened with; keys are not needed, nor are check_frames and
// debug_offsets heeded. Fails with kInvalidArgument if `handle` is none,
// kNotFound if nobody holds the memory any more, kPermissionDenied if another
// user does, and kCorrupt or as opening does if it does not hold what it must.
HAULWAY_EXPORT Result<std::shared_ptr<const SharedCheckpoint>> AttachShared(
    std::string_view handle, const OpenOptions& options = {});

}  // namespace haulway
