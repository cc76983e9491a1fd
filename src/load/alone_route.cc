// How: the largest storages go first, so that no thread is left alone with one.
// Small neighbours in that order are digested together in lanes.

#include "load/alone_route.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <utility>

#include "base/digest.h"

namespace haulway {

// A storage that is read as a sequence.
struct AloneRoute::Sequence {
  uint32_t r;
  PayloadStream stream;
  std::span<std::byte> rest;  // Payload bytes that are not read yet.
  uint64_t step;
};

// What one thread reads and digests together: neighbours in storages_, which
// are of about the same size, but no more than leaves all threads enough.
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

// A piece of each in turn; those of one turn stay in a core's cache.
Status AloneRoute::Run(uint64_t job) {
  const auto group = groups_[job];
  // Elsewhere than in the page cache a short read takes as long as a long one.
  const uint64_t piece_bytes =
      is_cached_ ? PieceBytes(group.size()) : load_.chunk_bytes;
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
