// The kernels that compress blocks of several messages in lock-step: one
// message per vector lane, or a few messages in turn.

#pragma once

#include <cstddef>
#include <cstdint>

namespace haulway {

inline constexpr size_t kMaxSha256Lanes = 32;

struct Sha256Lanes {
  size_t lanes = 0;
  // Smallest number of messages for which this kernel is faster than fewer
  // lanes or one message at a time.
  size_t worth = 0;
  // Compresses `blocks` blocks of 64 bytes of each message into its state. Word
  // w of lane l is states[w * lanes + l].
  void (*compress)(uint32_t* states, const std::byte* const* messages,
                   size_t blocks) = nullptr;
};

// Returns the best kernel for this processor and number of messages, or null.
const Sha256Lanes* BestSha256Lanes(size_t messages);

// Return one kernel, or null if the processor cannot run it; for tests.
const Sha256Lanes* Avx512TwiceSha256Lanes();
const Sha256Lanes* Avx512Sha256Lanes();
const Sha256Lanes* Avx2Sha256Lanes();
const Sha256Lanes* ShaSha256Lanes();

}  // namespace haulway
