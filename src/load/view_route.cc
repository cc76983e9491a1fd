// Design: a few threads prefetch the missing pages of a snapshot, 2 MiB at a
// time; they mostly wait for the disk. Then the views are created, and verified
// if the options say so. A view that is too large for one thread to digest in
// time is digested by all threads.

#include "load/view_route.h"

#include <algorithm>
#include <cstddef>

#include "base/digest.h"
#include "base/page_bytes.h"
#include "base/sigbus_guard.h"
#include "base/thread_pool.h"
#include "haulway/source.h"

namespace haulway {

namespace {

constexpr uint64_t kFetchBytes = 2 * kMiB;
// Ranges cut into pieces to prefetch. Neighbouring ranges share a piece,
// because they share pages.
class FetchPieces {
 public:
  void Add(uint64_t begin, uint64_t end) {
    if (!pieces_.empty()) {
      ByteRange& last = pieces_.back();
      const uint64_t last_end = last.offset + last.length;
      if (begin >= last_end && begin - last_end < kPageBytes &&
          end - last.offset <= kFetchBytes) {
        last.length = end - last.offset;
        return;
      }
    }
    for (; begin < end; begin += pieces_.back().length) {
      pieces_.push_back({begin, std::min(kFetchBytes, end - begin)});
    }
  }
  const std::vector<ByteRange>& pieces() const { return pieces_; }

 private:
  std::vector<ByteRange> pieces_;
};

}  // namespace

ViewRoute::ViewRoute(Loading& load, std::vector<uint32_t> viewed,
                     int fetch_threads)
    : load_(load), viewed_(std::move(viewed)), fetch_threads_(fetch_threads) {
  for (const uint32_t i : viewed_) bytes_ += load_.At(i).nbytes;
}

Status ViewRoute::Run() {
  HAULWAY_TRY(Authenticate());
  if (load_.choice.mode == IoMode::kSnapshot) HAULWAY_TRY(Fetch());
  return Take();
}

// Compares what a signature covers: afterwards the source has the views.
Status ViewRoute::Authenticate() {
  std::vector<ByteRange> ranges;
  ranges.reserve(viewed_.size());
  for (const uint32_t i : viewed_) {
    const StorageInfo& info = load_.At(i);
    ranges.push_back({info.frame_offset, info.frame_end - info.frame_offset});
  }
  return load_.requests.source().Authenticate(ranges);
}

// Prefetches the missing pages. Page faults would read them a few pages at a
// time, which takes three times as long.
Status ViewRoute::Fetch() {
  const StageClock clock;
  FetchPieces fetched;
  for (const uint32_t i : viewed_) {
    fetched.Add(load_.At(i).frame_offset, load_.At(i).frame_end);
  }
  const auto& pieces = fetched.pieces();
  const Status status =
      ParallelFor(pieces.size(), fetch_threads_, [&](uint64_t p) {
        HAULWAY_TRY(load_.progress->CheckCancelled());
        return load_.progress->Stop(load_.requests.source().Prefetch(
            pieces[p].offset, pieces[p].length));
      });
  load_.progress->AddTime(Stage::kRead, clock);
  return status;
}

Status ViewRoute::Take() {
  std::vector<Buffer> frames;
  frames.reserve(viewed_.size());
  for (const uint32_t i : viewed_) {
    const StorageInfo& info = load_.At(i);
    auto frame = load_.requests.source().View(
        info.frame_offset, info.frame_end - info.frame_offset);
    if (!frame.has_value()) {
      // Another thread may have found meanwhile that the file differs.
      const ByteRange range{info.frame_offset,
                            info.frame_end - info.frame_offset};
      HAULWAY_TRY(load_.requests.source().Authenticate(std::span(&range, 1)));
      return Status(Code::kTruncated, "the file was cut while it was mapped")
          .At(info.frame_offset);
    }
    frames.push_back(*std::move(frame));
  }
  HAULWAY_ASSIGN(const auto crc32s, LargeCrc32s(frames));
  return ParallelFor(
      viewed_.size(), load_.options.verify ? load_.choice.threads : 1,
      [&](uint64_t v) -> Status {
        const uint32_t i = viewed_[v];
        const StorageInfo& info = load_.At(i);
        const auto bytes =
            SplitFrame(info, {const_cast<std::byte*>(frames[v].data()),
                              static_cast<size_t>(frames[v].size())});
        HAULWAY_TRY(load_.progress->CheckCancelled());
        HAULWAY_TRY(Check(load_.rows[i], bytes, crc32s[v]));
        load_.buffers[i] =
            frames[v].Slice(info.offset - info.frame_offset, info.nbytes);
        return load_.progress->Advance(info.nbytes);
      });
}

// Checks a view. Guarded: the pages of a mapping may have disappeared.
Status ViewRoute::Check(uint32_t row, const StoredBytes& bytes,
                        std::optional<uint32_t> crc32) const {
  const GuardedSection guard;
  Status status = load_.decoder.Check(row, bytes, crc32);
  HAULWAY_TRY(guard.Check());
  return status;
}

// Returns the CRC-32 of each large view, parallel to viewed_. All threads
// compute it, piece by piece.
Result<std::vector<std::optional<uint32_t>>> ViewRoute::LargeCrc32s(
    std::span<const Buffer> frames) const {
  const uint64_t chunk = load_.chunk_bytes;
  std::vector<std::optional<uint32_t>> crc32s(viewed_.size());
  for (size_t v = 0; v < viewed_.size() && load_.choice.threads > 1; ++v) {
    const StorageInfo& info = load_.At(viewed_[v]);
    if (!load_.decoder.TakesCrc32(load_.rows[viewed_[v]]) ||
        info.nbytes <= 2 * chunk) {
      continue;
    }
    const auto payload =
        frames[v].bytes().subspan(info.offset - info.frame_offset, info.nbytes);
    const auto piece = [&](uint64_t p) {
      return payload.subspan(p * chunk,
                             std::min(chunk, payload.size() - p * chunk));
    };
    std::vector<uint32_t> found((payload.size() + chunk - 1) / chunk);
    HAULWAY_TRY(ParallelFor(found.size(), load_.choice.threads,
                            [&](uint64_t p) -> Status {
                              HAULWAY_TRY(load_.progress->CheckCancelled());
                              const StageClock clock;
                              const GuardedSection guard;
                              found[p] = Crc32(0, piece(p));
                              load_.progress->AddTime(Stage::kVerify, clock);
                              return guard.Check();
                            }));
    uint32_t crc32 = 0;  // CRC-32 of no bytes.
    for (uint64_t p = 0; p < found.size(); ++p) {
      crc32 = Crc32Join(crc32, found[p], piece(p).size());
    }
    crc32s[v] = crc32;
  }
  return crc32s;
}

}  // namespace haulway
