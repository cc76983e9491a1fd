#include "tensor/payload_digest.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "base/digest.h"
#include "base/sha256_lanes.h"
#include "base/text.h"

namespace haulway {

namespace {

// Bytes of each payload that are digested at a time, so that the next digest
// finds them in the cache.
constexpr size_t kStepBytes = 16 * 1024;

}  // namespace

PayloadChecker::PayloadChecker(std::vector<PayloadDigest> digests) {
  runs_.reserve(digests.size());
  for (PayloadDigest& digest : digests) {
    Run& run = runs_.emplace_back();
    run.expected = std::move(digest);
    if (run.expected.crc32.has_value()) {
      run.crc32 = Crc32(0, run.expected.prefix);
    }
    if (run.expected.sha256.has_value()) {
      run.sha256.Update(run.expected.prefix);
    }
  }
}

bool PayloadChecker::has_digests() const {
  return std::ranges::any_of(runs_, [](const Run& run) {
    return run.expected.crc32.has_value() || run.expected.sha256.has_value();
  });
}

void PayloadChecker::Update(std::span<const std::byte> piece) {
  for (Run& run : runs_) {
    if (run.expected.crc32.has_value()) run.crc32 = Crc32(run.crc32, piece);
    if (run.expected.sha256.has_value()) run.sha256.Update(piece);
  }
}

void PayloadChecker::UpdateTogether(
    std::span<PayloadChecker* const> checkers,
    std::span<const std::span<const std::byte>> pieces) {
  size_t longest = 0;
  for (const auto piece : pieces) longest = std::max(longest, piece.size());
  std::vector<std::span<const std::byte>> steps(pieces.size());
  for (size_t done = 0; done < longest; done += kStepBytes) {
    for (size_t i = 0; i < pieces.size(); ++i) {
      const auto rest = pieces[i].subspan(std::min(done, pieces[i].size()));
      steps[i] = rest.first(std::min(rest.size(), kStepBytes));
    }
    UpdateStep(checkers, steps);
  }
}

void PayloadChecker::UpdateStep(
    std::span<PayloadChecker* const> checkers,
    std::span<const std::span<const std::byte>> pieces) {
  std::vector<Sha256*> digests;
  std::vector<std::span<const std::byte>> digested;
  for (size_t i = 0; i < checkers.size(); ++i) {
    for (Run& run : checkers[i]->runs_) {
      if (run.expected.crc32.has_value()) {
        run.crc32 = Crc32(run.crc32, pieces[i]);
      }
      if (run.expected.sha256.has_value()) {
        digests.push_back(&run.sha256);
        digested.push_back(pieces[i]);
      }
    }
  }
  Sha256::UpdateTogether(digests, digested);
}

size_t PayloadsTogether(size_t count, int threads) {
  const size_t share = count / static_cast<size_t>(std::max(1, threads));
  const Sha256Lanes* lanes = BestSha256Lanes(share);
  return lanes == nullptr ? 1 : std::min(share, lanes->lanes);
}

std::vector<std::span<const uint32_t>> GroupPayloads(
    std::span<const uint32_t> largest_first, size_t most, int threads,
    const std::function<uint64_t(uint32_t)>& bytes_of, uint64_t least_bytes) {
  uint64_t total = 0;
  for (const uint32_t payload : largest_first) total += bytes_of(payload);
  const uint64_t share =
      total / (2 * static_cast<uint64_t>(std::max(1, threads)));
  std::vector<std::span<const uint32_t>> groups;
  uint64_t bytes = 0;
  for (size_t i = 0, first = 0; i < largest_first.size(); ++i) {
    bytes += bytes_of(largest_first[i]);
    const bool is_last = i + 1 == largest_first.size();
    const bool is_full = i + 1 - first >= most && bytes >= least_bytes;
    if (!is_full && bytes < share && !is_last) continue;
    groups.push_back(largest_first.subspan(first, i + 1 - first));
    first = i + 1;
    bytes = 0;
  }
  return groups;
}

Status PayloadChecker::Finish() {
  Status failure;
  for (Run& run : runs_) {
    const auto& crc32 = run.expected.crc32;
    const auto& sha256 = run.expected.sha256;
    Status status;
    if (crc32.has_value() && run.crc32 != *crc32) {
      status = Status(Code::kMismatch,
                      fmt::format("CRC-32 differs: expected {}, found {}",
                                  *crc32, run.crc32));
    } else if (sha256.has_value()) {
      const Sha256Value found = run.sha256.Finish();
      if (found != *sha256) {
        status = Status(Code::kMismatch,
                        fmt::format("SHA-256 differs: expected {}, found {}",
                                    Hex(*sha256), Hex(found)));
      }
    }
    if (status.ok()) return Status();
    if (failure.ok()) failure = std::move(status);
  }
  return failure;
}

}  // namespace haulway
