// A pool of private memory.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "haulway/buffer.h"

namespace haulway::python {

// A CopyPool allocates memory for copies of arena data. A page fault on fresh
// memory costs more than the copy itself, so the pool keeps a few returned
// blocks. Threads: any; memory may be returned on any thread.
class CopyPool : public std::enable_shared_from_this<CopyPool> {
 public:
  // Returns memory with unspecified content.
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
