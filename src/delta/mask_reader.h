// Combines the content of a zstd frame with the bytes of a tensor, block by
// block, and passes over zeros.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "delta/mask_block.h"
#include "haulway/status.h"

namespace haulway::delta {

// A MaskReader decodes one frame in order (RFC 8878), as FrameReader does, but
// without libzstd. Memory is one and a half of the window that the frame
// states, at most 128 MiB, and not more than its content. Threads: one at a
// time.
class MaskReader {
 public:
  struct Step {
    size_t bytes = 0;
    bool is_changed = false;
  };

  // `bytes`: the size of the tensor. Requires: `frame` outlives the reader.
  // Fails with kTruncated or kCorrupt if it does not begin with a frame, or the
  // frame states that its content has another size; and with kUnsupported if
  // the frame needs a dictionary or a larger window.
  static Result<MaskReader> Open(std::span<const std::byte> frame,
                                 uint64_t bytes);
  MaskReader(MaskReader&&) noexcept;
  ~MaskReader();

  // Returns whether a frame is of the kind that this decodes faster than
  // libzstd: with a window of one block, as ChangeWriter and MakeChange() write
  // it. `frame` may be anything.
  static bool IsFastFor(std::span<const std::byte> frame);

  // Combines the next bytes, at least one, with the beginning of `tensor`.
  // Requires: `tensor` has BlockDecoder::kMostBytes bytes, or what is left of
  // the tensor, above 0. Fails with kCorrupt if the content is shorter, longer
  // or damaged, and with kTruncated if the frame ends early.
  Result<Step> Combine(std::span<std::byte> tensor);
  // Fails with kCorrupt if the content is longer, its checksum differs, or
  // bytes follow the frame; and with kTruncated if the frame ends early.
  Status Finish();

 private:
  struct State;
  explicit MaskReader(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace haulway::delta
