// Copies bytes on several threads if that is faster.

#pragma once

#include <sys/types.h>

#include <cstddef>
#include <memory>
#include <mutex>
#include <span>

#include "arena/copy_pace.h"

namespace haulway::arena {

// Whether to copy through the caches, or around them with StreamBytes().
enum class CopyWay { kCached, kStreamed };

// A CopyCrew copies large blocks on the calling thread and on helpers, which
// sleep between copies. Helpers are started by the first copy that needs them.
// A child forked afterwards copies without helpers.
//
// Each thread has a part of the block. Threads that have finished take chunks
// of other parts, so no thread waits for one that gets no processor. If helpers
// do not make copies clearly faster, the caller copies alone.
class CopyCrew {
 public:
  CopyCrew();
  CopyCrew(const CopyCrew&) = delete;
  CopyCrew& operator=(const CopyCrew&) = delete;
  ~CopyCrew();

  // Copies `from` to `to` on up to `threads` threads. Requires: equal sizes, no
  // overlap. Threads: any number at once; one call at a time uses the helpers.
  void Copy(std::span<std::byte> to, std::span<const std::byte> from,
            int threads, CopyWay way = CopyWay::kCached);

 private:
  class Job;

  // Starts helpers until there are `helpers`, if possible. Returns false if
  // there can be none.
  bool Hire(size_t helpers);

  std::mutex mutex_;  // Held by the call that uses the helpers.
  std::shared_ptr<Job> job_;
  size_t helpers_ = 0;
  CopyPace pace_;
  pid_t owner_ = 0;  // The process that the helpers belong to.
};

}  // namespace haulway::arena
