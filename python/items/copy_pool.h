// Private memory that is used again.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "haulway/buffer.h"

namespace haulway::python {

// A CopyPool gives out memory for copies of what lies in an arena. Fresh pages
// cost more than the copy itself, so a few that come back are kept.
// Threads: any; memory may come back from any of them.
class CopyPool : public std::enable_shared_from_this<CopyPool> {
 public:
  // The content is unspecified.
  Buffer Take(uint64_t bytes);

 private:
  struct Block {
    std::unique_ptr<std::byte[]> memory;
    uint64_t bytes;
  };
  struct Returned {
    Returned(Block lent, std::weak_ptr<CopyPool> from)
        : block(std::move(lent)), pool(std::move(from)) {}
    Returned(const Returned&) = delete;
    Returned& operator=(const Returned&) = delete;
    ~Returned();

    Block block;
    std::weak_ptr<CopyPool> pool;
  };
  void Give(Block block);

  std::mutex mutex_;
  std::vector<Block> free_;
};

}  // namespace haulway::python
