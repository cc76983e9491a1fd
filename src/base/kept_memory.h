// Memory for reads that follow one another, each of which is done before the
// next: the next one takes the memory of the last. In fresh memory, the pages
// take longer than the bytes that are read into them (4 MiB of a file in the
// page cache, in a virtual machine: 1.7 ms instead of 0.1 ms), and giving them
// back stops the other threads.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "haulway/buffer.h"
#include "haulway/status.h"

namespace haulway {

// A KeptMemory keeps what was taken of it once nobody uses it any more. Copies
// share what they keep.
//
// Threads: any number at once.
class KeptMemory {
 public:
  // `most`: how many pieces of memory are kept.
  explicit KeptMemory(size_t most);

  // Returns memory of `bytes`, which is not zeroed; it may outlive this. Fails
  // as AllocateBuffer() does.
  Result<Buffer> Take(uint64_t bytes) const;

 private:
  class Pieces;
  std::shared_ptr<Pieces> pieces_;
};

}  // namespace haulway
