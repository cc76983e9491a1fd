// The kernels that compress blocks of many messages in lock-step: one message
// in each lane of the processor's vectors, or a few in turn.

#pragma once

#include <cstddef>
#include <cstdint>

namespace haulway {

inline constexpr size_t kMaxSha256Lanes = 32;

struct Sha256Lanes {
  size_t lanes = 0;
  // How many of them must be in use to be faster than fewer lanes, or one
  // message after the other.
  size_t worth = 0;
  // Compresses `blocks` blocks of 64 bytes of each message into its state:
  // word w of lane l is states[w * lanes + l].
  void (*compress)(uint32_t* states, const std::byte* const* messages,
                   size_t blocks) = nullptr;
};

// The best kernel for this processor and so many messages, or null.
const Sha256Lanes* BestSha256Lanes(size_t messages);

// Those that were built, if the processor can run them; for tests.
const Sha256Lanes* Avx512TwiceSha256Lanes();
const Sha256Lanes* Avx512Sha256Lanes();
const Sha256Lanes* Avx2Sha256Lanes();
const Sha256Lanes* ShaSha256Lanes();

}  // namespace haulway
