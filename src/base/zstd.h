// Compresses and decompresses zstd frames (RFC 8878) by libzstd.

#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "haulway/status.h"

namespace haulway {

// Returns whether `head`, the first four bytes of a frame or all that there
// are, begins as a frame does.
bool BeginsAsZstdFrame(std::span<const std::byte> head);

// A ZstdDecoder decompresses frames, one after another, piece by piece. Its
// memory is the window that a frame states, at most 128 MiB, whatever the
// content. Threads: one at a time.
class ZstdDecoder {
 public:
  // Fails with kLimit if there is no memory.
  static Result<ZstdDecoder> Make();
  ZstdDecoder(ZstdDecoder&&) noexcept;
  ZstdDecoder& operator=(ZstdDecoder&&) noexcept;
  ~ZstdDecoder();

  // Decompresses the beginning of `in` to the beginning of `out`, and removes
  // from both what was used. Stops at the end of a frame. If nothing was used,
  // `in` has too few bytes. Fails with kCorrupt for damaged bytes, and with
  // kUnsupported for a frame that needs a dictionary.
  Status Next(std::span<const std::byte>* in, std::span<std::byte>* out);

  // Returns whether the last call ended a frame, or none has begun.
  bool is_between_frames() const { return is_between_frames_; }

 private:
  struct State;
  explicit ZstdDecoder(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
  bool is_between_frames_ = true;
};

// A ZstdEncoder compresses one frame, piece by piece. Threads: one at a time.
class ZstdEncoder {
 public:
  // The frame states that its content has `content_bytes`. With `workers` above
  // 0, that many threads of libzstd compress, if it has threads. Fails with
  // kLimit if there is no memory.
  static Result<ZstdEncoder> Make(uint64_t content_bytes, int level,
                                  int workers);
  ZstdEncoder(ZstdEncoder&&) noexcept;
  ~ZstdEncoder();

  // Compresses the next bytes, and passes what is ready of the frame to `emit`.
  // Fails as `emit` does, and with kLimit if there is no memory.
  using Emit = std::function<Status(std::span<const std::byte> bytes)>;
  Status Add(std::span<const std::byte> piece, const Emit& emit);
  // Ends the frame. Requires: as many bytes were added as it states.
  Status Finish(const Emit& emit);

 private:
  struct State;
  explicit ZstdEncoder(std::unique_ptr<State> state);
  Status Pass(std::span<const std::byte> piece, bool is_last, const Emit& emit);
  std::unique_ptr<State> state_;
};

// The level at which libzstd is fastest, of those that search well.
inline constexpr int kFastZstdLevel = 1;

// Returns one zstd frame of `content`, which states the content's size. Fails
// with kLimit if there is no memory.
Result<std::vector<std::byte>> CompressZstd(std::span<const std::byte> content,
                                            int level = kFastZstdLevel);

}  // namespace haulway
