// Makes the frame that turns the bytes of a tensor into new ones.

#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "delta/checksum.h"
#include "delta/version_facts.h"
#include "haulway/status.h"

namespace haulway::delta {

// Takes the next bytes of a frame.
using FrameOut = std::function<Status(std::span<const std::byte> bytes)>;

// A ChangeWriter compares tensors and writes one zstd frame for each that
// changed, which states the size of its content. ApplyChange() and every
// receiver that is known takes it. Its memory does not depend on the tensors.
// Threads: one at a time.
class ChangeWriter {
 public:
  // Fails with kLimit if there is no memory.
  static Result<ChangeWriter> Make();
  ChangeWriter(ChangeWriter&&) noexcept;
  ~ChangeWriter();

  // Writes the frame for the change from `before` to `after`, and adds the
  // bytes of `after` to `checksum`. Returns false, and writes nothing, if they
  // are equal. Requires: both have the same size. Fails with kUnsupported if a
  // tensor is too large for its positions, and as `out` does.
  Result<bool> Write(Change change, std::span<const std::byte> before,
                     std::span<const std::byte> after, Checksum* checksum,
                     const FrameOut& out);

  // Write() for kXor that also copies `after` into `tensor`. Frame, checksum
  // and copy agree even if another thread changes `after` meanwhile. Sets
  // `done` to the number of bytes that are the new ones, also after a failure;
  // what was written of the frame covers them, and Undo() brings them back.
  Result<bool> Replace(std::span<std::byte> tensor,
                       std::span<const std::byte> after, Checksum* checksum,
                       const FrameOut& out, uint64_t* done);

 private:
  struct State;
  explicit ChangeWriter(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// Combines the first `done` bytes of a tensor with the content of a frame,
// which may end early after them. Fails as FrameReader does.
Status Undo(std::span<const std::byte> frame, std::span<std::byte> tensor,
            uint64_t done);

// Returns what ChangeWriter::Write() writes, at once. Requires: both have the
// same size, above 0, and differ. Fails as Write() does.
Result<std::vector<std::byte>> MakeChange(Change change,
                                          std::span<const std::byte> before,
                                          std::span<const std::byte> after);

}  // namespace haulway::delta
