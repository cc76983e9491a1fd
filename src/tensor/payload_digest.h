// Checking a payload against the digests that its frame holds.

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

// A PayloadChecker takes a payload in pieces, and says whether its digests are
// those it was given. Not for two threads at once.
class PayloadChecker {
 public:
  explicit PayloadChecker(std::vector<PayloadDigest> digests);

  // Whether it was given any.
  bool has_digests() const;

  void Update(std::span<const std::byte> piece);
  // The same as Update() of each with the piece of its number, faster for
  // many.
  static void UpdateTogether(
      std::span<PayloadChecker* const> checkers,
      std::span<const std::span<const std::byte>> pieces);
  // kMismatch unless every digest of one of them matches, or there are none.
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

// How many of `count` payloads each of several threads should check together:
// 1 where that is no faster.
size_t PayloadsTogether(size_t count, int threads);

// Cuts payloads into runs that one of several threads takes together: of up to
// `most`, or of more where those are less than `least_bytes` and handing them
// out would cost something; but no more bytes than leave all threads enough to
// do. Requires: the largest first, so that those of a run are of about the same
// size.
std::vector<std::span<const uint32_t>> GroupPayloads(
    std::span<const uint32_t> largest_first, size_t most, int threads,
    const std::function<uint64_t(uint32_t)>& bytes_of,
    uint64_t least_bytes = 0);

}  // namespace haulway
