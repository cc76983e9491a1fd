// SHA-256, as the processor does it best.

#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <span>

namespace haulway {

using Sha256Value = std::array<std::byte, 32>;

// A Sha256 takes bytes in pieces and gives their digest. Not for two threads
// at once.
class Sha256 {
 public:
  Sha256();
  Sha256(Sha256&&) noexcept;
  Sha256& operator=(Sha256&&) noexcept;
  ~Sha256();

  void Update(std::span<const std::byte> bytes);
  // Of all bytes so far; the object starts anew.
  Sha256Value Finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace haulway
