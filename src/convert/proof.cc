#include "convert/proof.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <span>
#include <utility>

#include "base/thread_pool.h"
#include "haulway/options.h"
#include "tensor/payload_digest.h"

namespace haulway::convert {

namespace {

constexpr uint64_t kReadBytes = 256 * kKiB;

// Reads elements piece by piece.
struct Pieces {
  BytesToWrite bytes;
  uint64_t done = 0;
  std::unique_ptr<std::byte[]> memory;

  void Start(BytesToWrite all) {
    bytes = std::move(all);
    memory = std::make_unique_for_overwrite<std::byte[]>(
        std::min(kReadBytes, bytes.length));
  }
  // Returns the next piece; empty after the last.
  Result<std::span<const std::byte>> Next() {
    const std::span<std::byte> piece(memory.get(),
                                     std::min(kReadBytes, bytes.length - done));
    if (!piece.empty()) {
      HAULWAY_TRY(bytes.source->ReadAt(bytes.source_offset + done, piece));
    }
    done += piece.size();
    return std::span<const std::byte>(piece);
  }
};

// A tensor that is digested together with others.
struct Stream {
  size_t number = 0;  // Number of the request.
  Pieces elements;
  std::optional<Pieces> same;  // The elements to compare with.
  Sha256 digest;
};

// Records a tensor that differs. If several threads find one, any of them is
// reported.
class Differing {
 public:
  explicit Differing(std::optional<size_t>* out) : out_(out) {}
  Status At(size_t number) {
    const std::lock_guard lock(mutex_);
    if (out_ != nullptr) *out_ = number;
    return Status(Code::kMismatch, "the elements are not the same");
  }

 private:
  std::mutex mutex_;
  std::optional<size_t>* const out_;
};

Status DigestStreams(std::span<Stream> streams, const SourceOptions& options,
                     Differing* differing) {
  std::vector<Sha256*> digests;
  std::vector<std::span<const std::byte>> pieces;
  do {
    if (options.cancel != nullptr && options.cancel->load()) {
      return Status(Code::kCancelled, "digesting was cancelled");
    }
    digests.clear();
    pieces.clear();
    for (Stream& stream : streams) {
      HAULWAY_ASSIGN(const auto piece, stream.elements.Next());
      if (stream.same.has_value()) {
        HAULWAY_ASSIGN(const auto other, stream.same->Next());
        // memcmp(), because std::ranges::equal() compares byte by byte here.
        if (piece.size() != other.size() ||
            (!piece.empty() &&
             std::memcmp(piece.data(), other.data(), piece.size()) != 0)) {
          return differing->At(stream.number);
        }
      }
      if (piece.empty()) continue;
      digests.push_back(&stream.digest);
      pieces.push_back(piece);
      if (options.digested) options.digested(piece.size());
    }
    Sha256::UpdateTogether(digests, pieces);
  } while (!digests.empty());
  return Status();
}

}  // namespace

Result<std::vector<Sha256Value>> DigestTensors(
    const Checkpoint& from, std::span<const DigestRequest> requests,
    const SourceOptions& options, int threads, const ComparedWith& other,
    std::optional<size_t>* differing) {
  Differing differs(differing);
  // Start with the largest, so that no thread ends up with a large one at the
  // end, and tensors of similar length are digested together.
  std::vector<uint32_t> order(requests.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, std::greater(), [&](uint32_t i) {
    return from.index().tensors[requests[i].tensor].nbytes;
  });
  const size_t together =
      std::max<size_t>(1, PayloadsTogether(order.size(), threads));
  // Each request may hold its own blocks.
  SourceOptions each = options;
  each.block_bytes = std::max(kMiB, options.block_bytes / together);
  const size_t groups = (order.size() + together - 1) / together;
  std::vector<Sha256Value> digests(requests.size());
  HAULWAY_TRY(ParallelFor(groups, threads, [&](uint64_t group) -> Status {
    const size_t first = group * together;
    const auto members = std::span(order).subspan(
        first, std::min(together, order.size() - first));
    std::vector<Stream> streams(members.size());
    for (size_t i = 0; i < members.size(); ++i) {
      Stream& stream = streams[i];
      stream.number = members[i];
      const DigestRequest& request = requests[stream.number];
      stream.elements.Start(ElementsOf(from, request.tensor, request.to, each));
      if (other.checkpoint == nullptr) continue;
      const DigestRequest& same = other.requests[stream.number];
      stream.same.emplace().Start(
          ElementsOf(*other.checkpoint, same.tensor, same.to, each));
    }
    HAULWAY_TRY(DigestStreams(streams, options, &differs));
    for (size_t i = 0; i < members.size(); ++i) {
      digests[members[i]] = streams[i].digest.Finish();
    }
    return Status();
  }));
  return digests;
}

}  // namespace haulway::convert
