// Reads the frame of a version, and changes the bytes of a tensor with it, one
// block after another.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "delta/mask_block.h"
#include "delta/version_facts.h"
#include "haulway/status.h"

namespace haulway::delta {

// A ChangeReader changes a tensor in order. Takes little memory whatever the
// frame says. The same frame and blocks give the same steps in each process.
// Threads: one at a time.
class ChangeReader {
 public:
  // How many bytes Next() needs, unless the tensor ends before.
  static constexpr size_t kBlockBytes = BlockDecoder::kMostBytes;

  // What Next() did.
  struct Step {
    size_t bytes = 0;         // At least 1: the size of the block.
    bool is_changed = false;  // Whether any of them changed.
  };

  // Requires: `frame` outlives the reader; `tensor_bytes` is above 0. Fails
  // with kCorrupt or kTruncated if the frame's beginning does not fit the
  // tensor, and as FrameReader::Open() does.
  static Result<ChangeReader> Open(Change change,
                                   std::span<const std::byte> frame,
                                   uint64_t tensor_bytes);
  ChangeReader(ChangeReader&&) noexcept;
  ~ChangeReader();

  // Returns how many bytes of old values the change replaces; 0 if it can be
  // undone by applying it again.
  uint64_t replaced() const;

  // Changes bytes at the beginning of `block`. Requires: `block` is the next
  // kBlockBytes bytes of the tensor, or what is left of it, above 0; `kept`, if
  // not null, has room for replaced() bytes, and gets those that are replaced.
  // Fails with kCorrupt or kTruncated if the frame is damaged; the block's
  // bytes are unspecified then.
  Result<Step> Next(std::span<std::byte> block, std::byte* kept = nullptr);
  // Undoes Next(), in a reader that only undoes. `kept`: what Next() kept.
  Result<Step> Undo(std::span<std::byte> block, const std::byte* kept);
  // Fails with kCorrupt or kTruncated unless the frame ends with the tensor.
  Status Finish();

 private:
  class Changer;
  class Xor;
  class SparseXor;
  class Overwrite;
  explicit ChangeReader(std::unique_ptr<Changer> changer);
  std::unique_ptr<Changer> changer_;
};

}  // namespace haulway::delta
