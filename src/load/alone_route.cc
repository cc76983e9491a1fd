// Design: the largest storages go first, so that no thread is left alone with a
// large one at the end. Storages that are small and neighbours in that order
// are digested together, in SIMD lanes.

#include "load/alone_route.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <utility>

#include "base/digest.h"

namespace haulway {

// A storage that is being read in sequence.
struct AloneRoute::Sequence {
  uint32_t r;
  PayloadStream stream;
  std::span<std::byte> rest;  // Payload bytes not read yet.
  uint64_t step;
};

// Makes the groups that one thread reads and digests together. A group holds
// neighbours in storages_, which have about the same size, and is small enough
// to leave work for all threads.
void AloneRoute::Group() {
  const auto bytes_of = [&](uint32_t r) {
    return load_.ToRead(r).stored_bytes;
  };
  std::ranges::stable_sort(storages_, std::greater<>(), bytes_of);
  const int threads = load_.choice.threads;
  const size_t most = load_.options.verify && load_.reader.has_digests()
                          ? PayloadsTogether(storages_.size(), threads)
                          : 1;
  groups_ = GroupPayloads(storages_, most, threads, bytes_of);
}

Result<AloneRoute::Sequence> AloneRoute::Begin(uint32_t r,
                                               uint64_t piece_bytes) const {
  const StorageInfo& info = load_.ToRead(r);
  const auto memory = load_.FrameOf(r);
  const auto frame = memory.first(info.offset - info.frame_offset);
  HAULWAY_ASSIGN(
      PayloadStream stream,
      PayloadStream::Open(load_.reader, load_.RowOf(r), load_.options.verify,
                          load_.requests, load_.progress, frame));
  HAULWAY_ASSIGN(const uint64_t step, stream.Step(piece_bytes));
  return Sequence{r, std::move(stream),
                  memory.subspan(frame.size(), info.stored_bytes), step};
}

uint64_t AloneRoute::PieceBytesOf(size_t together) const {
  switch (pieces_) {
    case Pieces::kInCache:
      return PieceBytes(together);
    case Pieces::kRequests:
      return load_.chunk_bytes;
    case Pieces::kWhole:
      break;
  }
  return UINT64_MAX;
}

// Reads one piece of each storage in turn; the pieces of one round fit in the
// core's cache.
Status AloneRoute::Run(uint64_t job) {
  const auto group = groups_[job];
  const uint64_t piece_bytes = PieceBytesOf(group.size());
  std::vector<Sequence> sequences;
  sequences.reserve(group.size());
  for (const uint32_t r : group) {
    HAULWAY_ASSIGN(Sequence sequence, Begin(r, piece_bytes));
    sequences.push_back(std::move(sequence));
  }
  std::vector<PayloadStream*> streams;
  std::vector<std::span<std::byte>> pieces;
  while (true) {
    streams.clear();
    pieces.clear();
    for (Sequence& sequence : sequences) {
      if (sequence.rest.empty()) continue;
      const auto piece = sequence.rest.first(
          std::min<uint64_t>(sequence.step, sequence.rest.size()));
      sequence.rest = sequence.rest.subspan(piece.size());
      load_.memory.BringIn(piece);
      streams.push_back(&sequence.stream);
      pieces.push_back(piece);
    }
    if (streams.empty()) break;
    HAULWAY_TRY(PayloadStream::NextTogether(streams, pieces));
  }
  for (Sequence& sequence : sequences) {
    HAULWAY_TRY(sequence.stream.Finish());
    load_.Give(sequence.r);
  }
  return Status();
}

}  // namespace haulway
