// Reads consecutive pickles from a source.

#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "haulway/buffer.h"
#include "haulway/source.h"
#include "haulway/status.h"
#include "haulway/tree.h"
#include "pickle/pickle_vm.h"

namespace haulway::torch {

// A PickleStream reads pickles from a position on. It keeps the bytes it has
// read, because the trees refer to them.
class PickleStream {
 public:
  // Requires: `source` and `arena` outlive the stream.
  PickleStream(const ByteSource& source, TreeArena* arena, uint64_t position,
               uint64_t end)
      : source_(source), arena_(*arena), position_(position), end_(end) {}

  // Parses the next pickle and moves past it. Errors call it `what`.
  Result<PickleResult> Next(const PickleOptions& options,
                            std::string_view what);

  // Reads `out.size()` bytes that are not a pickle, and moves past them.
  Status Read(std::span<std::byte> out);
  Status Skip(uint64_t bytes);

  uint64_t position() const { return position_; }
  uint64_t remaining() const { return end_ - position_; }
  // Returns everything read so far. The trees' text lives as long as these
  // buffers.
  std::vector<Buffer> TakeBytes() { return std::move(kept_); }

 private:
  const ByteSource& source_;
  TreeArena& arena_;
  uint64_t position_;
  const uint64_t end_;
  Buffer window_;  // The source's bytes from window_start_ on.
  uint64_t window_start_ = 0;
  std::vector<Buffer> kept_;
};

}  // namespace haulway::torch
