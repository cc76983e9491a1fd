// The part of the pickle format, protocol 5, that is needed to find bytes
// objects in a pickle.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace haulway::python {

// CPython Lib/pickletools.py
inline constexpr std::byte kProto{0x80};
inline constexpr std::byte kFrame{0x95};
inline constexpr std::byte kBinBytes{'B'};
inline constexpr std::byte kBinBytes8{0x8e};
inline constexpr std::byte kByteArray8{0x96};
inline constexpr std::byte kNextBuffer{0x97};

// A PickleWalker iterates over the opcodes that CPython's pickler writes in
// binary protocols.
class PickleWalker {
 public:
  explicit PickleWalker(std::span<const std::byte> stream) : stream_(stream) {}

  // Returns false at the end, or if the opcode is unknown; then ok() is false.
  bool Next();
  bool ok() const { return ok_; }

  std::byte opcode() const { return stream_[start_]; }
  size_t start() const { return start_; }
  size_t end() const { return end_; }
  // Returns whether the opcode holds a bytes object or a bytearray; opcode()
  // tells which.
  bool is_bytes() const;
  std::span<const std::byte> payload() const { return payload_; }

 private:
  std::span<const std::byte> stream_;
  size_t start_ = 0;
  size_t end_ = 0;
  std::span<const std::byte> payload_;
  bool ok_ = true;
};

}  // namespace haulway::python
