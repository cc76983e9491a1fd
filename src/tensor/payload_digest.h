// Checks a payload against the digests in its frame.

#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/sha256.h"
#include "haulway/index.h"
#include "haulway/status.h"

namespace haulway {

// A PayloadChecker takes a payload in pieces, and compares its digests with the
// expected ones. Must not be used by two threads at once.
class PayloadChecker {
 public:
  explicit PayloadChecker(std::vector<PayloadDigest> digests);

  // Returns whether there are expected digests.
  bool has_digests() const;

  void Update(std::span<const std::byte> piece);
  // Equals Update() of each checker with the piece of the same number, but is
  // faster for many.
  static void UpdateTogether(
      std::span<PayloadChecker* const> checkers,
      std::span<const std::span<const std::byte>> pieces);
  // Fails with kMismatch unless every digest of one PayloadDigest matches, or
  // there are none.
  Status Finish();

 private:
  struct Run {
    PayloadDigest expected;
    uint32_t crc32 = 0;
    Sha256 sha256;
  };

  static void UpdateStep(std::span<PayloadChecker* const> checkers,
                         std::span<const std::span<const std::byte>> pieces);

  std::vector<Run> runs_;
};

// Returns how many of `count` payloads each thread should check together; 1 if
// more is not faster.
size_t PayloadsTogether(size_t count, int threads);

// Groups payloads that one thread processes together: up to `most`, or more if
// they total less than `least_bytes`, to reduce scheduling costs; but not so
// many bytes that other threads run out of work. Requires: the largest come
// first, so that those of a group are of similar size.
std::vector<std::span<const uint32_t>> GroupPayloads(
    std::span<const uint32_t> largest_first, size_t most, int threads,
    const std::function<uint64_t(uint32_t)>& bytes_of,
    uint64_t least_bytes = 0);

}  // namespace haulway
