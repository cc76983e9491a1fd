// Decompresses the zstd frame of a changed tensor, block by block.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "haulway/status.h"

namespace haulway::delta {

// A FrameReader decompresses one frame in order. Memory is the window that the
// frame states, at most 128 MiB, whatever the frame's content. Threads: one at
// a time.
class FrameReader {
 public:
  // Requires: `frame` outlives the reader. Fails with kTruncated or kCorrupt if
  // it does not begin with a frame, with kUnsupported if the frame needs a
  // dictionary, and with kLimit if there is no memory.
  static Result<FrameReader> Open(std::span<const std::byte> frame);
  FrameReader(FrameReader&&) noexcept;
  ~FrameReader();

  // Returns whether the frame states that its content has another size than
  // `bytes`.
  bool Contradicts(uint64_t bytes) const;
  // Returns the content's size for messages; 0 if the frame does not state it.
  uint64_t stated_bytes() const;

  // Fills all of `out` with the next bytes. Fails with kCorrupt if the content
  // is shorter or damaged, and with kTruncated if the frame ends early.
  Status Fill(std::span<std::byte> out);
  // Passes over bytes. Fails as Fill() does.
  Status Skip(uint64_t bytes);
  // Fails with kCorrupt if the content is longer or bytes follow the frame, and
  // as Fill() does.
  Status Finish();

 private:
  struct State;
  explicit FrameReader(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace haulway::delta
