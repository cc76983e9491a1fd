// Copying bytes, on several threads where that pays.

#pragma once

#include <sys/types.h>

#include <cstddef>
#include <memory>
#include <mutex>
#include <span>

#include "arena/copy_pace.h"

namespace haulway::arena {

// How bytes are copied: through the caches, or past them by StreamBytes().
enum class CopyWay { kCached, kStreamed };

// A CopyCrew copies large blocks, the caller together with threads that sleep
// in between. They are started at the first copy that wants them. A child that
// was fork()ed after that copies alone.
//
// Each thread has a part of the block, and those that are done take chunks of
// what others have left. So nobody waits for a thread that gets no processor.
// Where helpers do not make copies clearly faster, the caller copies alone.
class CopyCrew {
 public:
  CopyCrew();
  CopyCrew(const CopyCrew&) = delete;
  CopyCrew& operator=(const CopyCrew&) = delete;
  ~CopyCrew();

  // Copies `from` to `to`, of equal size and apart from it, on up to `threads`
  // threads. Threads: any; of two calls at once, one has the crew.
  void Copy(std::span<std::byte> to, std::span<const std::byte> from,
            int threads, CopyWay way = CopyWay::kCached);

 private:
  class Job;

  // Makes sure that there are so many helpers, as far as it can. False if
  // there can be none.
  bool Hire(size_t helpers);

  std::mutex mutex_;  // Held by the call that has the crew.
  std::shared_ptr<Job> job_;
  size_t helpers_ = 0;
  CopyPace pace_;
  pid_t owner_ = 0;  // The process whose threads they are.
};

}  // namespace haulway::arena
