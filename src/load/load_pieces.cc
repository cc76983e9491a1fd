// Design: the storages pass through a ring of slots (piece_ring.h). Threads
// fill slots, and the caller's function gets each full slot. Small storages
// share a slot and a read. Large storages are cut into ranges at multiples of
// 64 bytes, and encrypted ones are read in sequence. Apart from the ring,
// memory is needed only for storages that are compressed, or byte-swapped in
// odd units: a buffer of their size, from half of the budget.
//
// LoadEach() holds whole storages, so it needs memory for the largest one;
// LoadPieces() is for commands that only look at bytes. A wrong checksum is
// detected and reported after the last piece was handed out: holding the pieces
// back would need the memory again.

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <mutex>
#include <numeric>
#include <utility>
#include <vector>

#include "base/checked.h"
#include "base/no_memory.h"
#include "base/page_bytes.h"
#include "base/thread_pool.h"
#include "decode/encoding_traits.h"
#include "decode/range_decoder.h"
#include "decode/storage_decoder.h"
#include "haulway/load.h"
#include "io/join_ranges.h"
#include "load/choose_io.h"
#include "load/load_opened.h"
#include "load/load_progress.h"
#include "load/payload_stream.h"
#include "load/piece_ring.h"
#include "load/request_reader.h"
#include "load/staging.h"
#include "tensor/byte_swap.h"

namespace haulway {

namespace {

constexpr uint64_t kPieceUnit = 64;  // Cuts at multiples split no element.

using Taker = std::function<Status(Piece piece)>;

// How a storage is cut into pieces.
enum class Way : uint8_t {
  kGrouped,   // Small: shares a slot with its neighbours.
  kParts,     // In parts that are independent of each other.
  kSequence,  // From start to end, for the digest.
  kWhole,     // Read into a separate buffer first, because it cannot be cut.
};

struct Unit {
  Way way;
  uint32_t first;       // Index in order_.
  uint32_t count = 1;   // Above 1 only for kGrouped.
  uint64_t offset = 0;  // In the payload for kParts, else in the source.
  uint64_t length = 0;
};

// A storage that is read in parts.
struct Large {
  std::unique_ptr<RangeDecoder> decoder;
  uint64_t part_bytes = 0;
  std::mutex mutex;  // Held while the caller's function runs.
};

class PieceLoader {
 public:
  PieceLoader(const Checkpoint& checkpoint, const OpenedSource& opened,
              std::span<const uint32_t> rows, const LoadOptions& options,
              uint64_t largest, const Taker& take, LoadProgress* progress)
      : reader_(checkpoint.reader()),
        rows_(rows),
        options_(options),
        threads_(opened.choice.threads),
        largest_(largest),
        largest_hole_(opened.choice.largest_hole),
        in_order_(opened.traits.in_order),
        take_(take),
        progress_(progress),
        requests_(opened, options, progress),
        decoder_(reader_, {.verify = options.verify}, progress),
        staging_(options.memory_budget / 2, progress) {}

  Status Run() {
    Sort();
    HAULWAY_TRY(CheckLarge());
    MakeUnits();
    if (units_.empty()) return Status();
    const StageClock clock;
    // Half of the budget is reserved for storages that cannot be cut.
    const uint64_t budget =
        has_whole_ ? options_.memory_budget / 2 : options_.memory_budget;
    const uint64_t slot = largest_ + kPageBytes;
    const uint64_t slots =
        std::clamp<uint64_t>(budget / (slot + kPageBytes), 1, MostPieces());
    HAULWAY_ASSIGN(PieceRing ring, PieceRing::Make(slot, slots, options_));
    progress_->AddTime(Stage::kAllocate, clock);
    return ParallelFor(units_.size(), threads_, [&](uint64_t u) -> Status {
      HAULWAY_TRY(progress_->CheckCancelled());
      return progress_->Stop(Load(ring, units_[u]));
    });
  }

 private:
  uint32_t row(uint32_t o) const { return rows_[order_[o]]; }
  const StorageInfo& info(uint32_t o) const {
    return reader_.index().storages[row(o)];
  }
  static uint64_t FrameLength(const StorageInfo& info) {
    return info.frame_end - info.frame_offset;
  }

  void Sort() {
    order_.resize(rows_.size());
    std::iota(order_.begin(), order_.end(), 0);
    std::ranges::stable_sort(order_, {}, [&](uint32_t position) {
      return reader_.index().storages[rows_[position]].frame_offset;
    });
    ways_.resize(order_.size());
    for (uint32_t o = 0; o < order_.size(); ++o) ways_[o] = WayOf(info(o));
  }

  Way WayOf(const StorageInfo& info) const {
    if (TraitsOf(info).needs_memory()) return Way::kWhole;
    if (FrameLength(info) <= largest_) return Way::kGrouped;
    if (in_order_ || (options_.verify && reader_.has_digests())) {
      return SequenceDecoder::Takes(info) ? Way::kSequence : Way::kWhole;
    }
    return Way::kParts;
  }

  // Checks the frames of storages that are read in parts, before any part is
  // handed out.
  Status CheckLarge() {
    large_.resize(order_.size());
    return ParallelFor(order_.size(), threads_, [&](uint64_t at) -> Status {
      const auto o = static_cast<uint32_t>(at);
      if (ways_[o] != Way::kParts) return Status();
      HAULWAY_TRY(progress_->CheckCancelled());
      const StorageInfo& storage = info(o);
      auto large = std::make_unique<Large>();
      std::vector<std::byte> before(storage.offset - storage.frame_offset);
      const uint64_t end = storage.offset + storage.stored_bytes;
      std::vector<std::byte> after(storage.frame_end - end);
      if (!before.empty()) {
        HAULWAY_TRY(requests_.Read(storage.frame_offset, before));
      }
      if (!after.empty()) HAULWAY_TRY(requests_.Read(end, after));
      HAULWAY_ASSIGN(large->decoder,
                     RangeDecoder::Open(reader_, row(o), options_.verify,
                                        std::move(before), after, progress_));
      large->part_bytes = large->decoder->Step(largest_);
      if (large->part_bytes > largest_) {
        ways_[o] = Way::kWhole;
        return Status();
      }
      large_[o] = std::move(large);
      return Status();
    });
  }

  void MakeUnits() {
    bool extends = false;
    for (uint32_t o = 0; o < order_.size(); ++o) {
      const StorageInfo& storage = info(o);
      const Way way = ways_[o];
      if (way == Way::kParts) {
        Large& large = *large_[o];
        for (uint64_t done = 0; done < storage.stored_bytes;) {
          const uint64_t length =
              std::min(large.part_bytes, storage.stored_bytes - done);
          units_.push_back({way, o, 1, done, length});
          done += length;
        }
        extends = false;
        continue;
      }
      if (way == Way::kGrouped && extends) {
        Unit& last = units_.back();
        ByteRange read = {last.offset, last.length};
        if (JoinRanges(&read, {storage.frame_offset, FrameLength(storage)},
                       {.largest_hole = largest_hole_,
                        .largest_read = largest_,
                        .may_overlap = false})) {
          last.length = read.length;
          ++last.count;
          continue;
        }
      }
      has_whole_ = has_whole_ || way == Way::kWhole;
      units_.push_back({way, o, 1, storage.frame_offset, FrameLength(storage)});
      extends = way == Way::kGrouped;
    }
  }

  // Returns an upper bound of the number of pieces. The caller may keep the
  // pieces it was given, so each piece may need a slot of its own.
  uint64_t MostPieces() const {
    uint64_t pieces = 0;
    for (const Unit& unit : units_) {
      ++pieces;
      if (unit.way == Way::kSequence || unit.way == Way::kWhole) {
        // A step may be only slightly more than half of `largest_`.
        const uint64_t bytes = std::max(unit.length, info(unit.first).nbytes);
        pieces += bytes / (largest_ / 2);
      }
    }
    return pieces;
  }

  // Returns the part of a slot whose address equals `offset` modulo a page, so
  // that direct I/O can read into it.
  static Buffer Phased(const Buffer& slot, uint64_t offset, uint64_t length) {
    return slot.Slice(offset % kPageBytes, length);
  }

  Status Take(uint32_t o, uint64_t offset, Buffer bytes) {
    if (bytes.size() == 0) return Status();
    return take_(Piece{order_[o], offset, std::move(bytes)});
  }

  Status Load(const PieceRing& ring, const Unit& unit) {
    switch (unit.way) {
      case Way::kGrouped:
        return LoadGroup(ring, unit);
      case Way::kParts:
        return LoadPart(ring, unit);
      case Way::kSequence:
        return LoadSequence(ring, unit.first);
      case Way::kWhole:
        break;
    }
    return LoadWhole(ring, unit.first);
  }

  Status LoadGroup(const PieceRing& ring, const Unit& unit) {
    Buffer bytes;
    if (unit.length > 0) {
      HAULWAY_ASSIGN(const Buffer slot, ring.Take(*progress_));
      bytes = Phased(slot, unit.offset, unit.length);
      HAULWAY_TRY(requests_.Read(unit.offset, bytes.mutable_bytes()));
    }
    for (uint32_t o = unit.first; o < unit.first + unit.count; ++o) {
      const StorageInfo& storage = info(o);
      const Buffer frame =
          bytes.Slice(storage.frame_offset - unit.offset, FrameLength(storage));
      const auto stored =
          SplitFrame(storage, frame.size() == 0 ? std::span<std::byte>()
                                                : frame.mutable_bytes());
      HAULWAY_TRY(decoder_.Finish(row(o), stored, stored.stored, 1));
    }
    for (uint32_t o = unit.first; o < unit.first + unit.count; ++o) {
      const StorageInfo& storage = info(o);
      HAULWAY_TRY(Take(
          o, 0, bytes.Slice(storage.offset - unit.offset, storage.nbytes)));
    }
    return Status();
  }

  Status LoadPart(const PieceRing& ring, const Unit& unit) {
    const uint32_t o = unit.first;
    const StorageInfo& storage = info(o);
    Large& large = *large_[o];
    HAULWAY_ASSIGN(const Buffer slot, ring.Take(*progress_));
    const uint64_t offset = storage.offset + unit.offset;
    const bool aligned = storage.offset % storage.alignment() == 0;
    Buffer bytes = aligned ? Phased(slot, offset, unit.length)
                           : slot.Slice(0, unit.length);
    const auto payload = bytes.mutable_bytes();
    HAULWAY_TRY(requests_.Read(offset, payload));
    HAULWAY_TRY(large.decoder->Decode(unit.offset, payload));
    // A mismatch is detected with the last part, and reported after that part
    // was handed out.
    const Status digest = large.decoder->Note(unit.offset, payload);
    SwapBytes(payload, storage.swap_bytes);
    {
      const std::lock_guard lock(large.mutex);
      HAULWAY_TRY(Take(o, unit.offset, std::move(bytes)));
    }
    return digest;
  }

  Status LoadSequence(const PieceRing& ring, uint32_t o) {
    const StorageInfo& storage = info(o);
    std::vector<std::byte> frame(storage.offset - storage.frame_offset);
    HAULWAY_ASSIGN(PayloadStream stream,
                   PayloadStream::Open(reader_, row(o), options_.verify,
                                       requests_, progress_, frame));
    HAULWAY_ASSIGN(const uint64_t step, stream.Step(largest_));
    if (step > largest_) return LoadWhole(ring, o);
    for (uint64_t done = 0; done < storage.stored_bytes; done += step) {
      HAULWAY_ASSIGN(const Buffer slot, ring.Take(*progress_));
      const Buffer bytes = Phased(slot, storage.offset + done,
                                  std::min(step, storage.stored_bytes - done));
      HAULWAY_TRY(stream.Next(bytes.mutable_bytes()));
      HAULWAY_TRY(Take(o, done, bytes));
    }
    return stream.Finish();
  }

  Status LoadWhole(const PieceRing& ring, uint32_t o) {
    const StorageInfo& storage = info(o);
    const uint64_t frame_bytes = FrameLength(storage);
    const bool is_apart = TraitsOf(storage).is_apart;
    uint64_t needed = frame_bytes;
    if (is_apart && !CheckedAdd(needed, storage.nbytes, &needed)) {
      return Status(Code::kLimit, "storage needs more memory than there is");
    }
    HAULWAY_ASSIGN(const Staging::Lease lease, staging_.Take(needed));
    const auto frame = lease.bytes().first(frame_bytes);
    for (uint64_t done = 0; done < frame.size(); done += largest_) {
      HAULWAY_TRY(requests_.Read(
          storage.frame_offset + done,
          frame.subspan(done, std::min(largest_, frame.size() - done))));
    }
    const auto bytes = SplitFrame(storage, frame);
    const auto payload =
        is_apart ? lease.bytes().subspan(frame_bytes) : bytes.stored;
    HAULWAY_TRY(decoder_.Finish(row(o), bytes, payload, 1));
    for (uint64_t done = 0; done < storage.nbytes; done += largest_) {
      HAULWAY_ASSIGN(const Buffer slot, ring.Take(*progress_));
      const Buffer piece =
          slot.Slice(0, std::min(largest_, storage.nbytes - done));
      std::byte* const out = piece.mutable_bytes().data();
      if (payload.empty()) {  // Nothing is stored.
        std::memset(out, 0, piece.size());
      } else {
        std::memcpy(out, payload.data() + done, piece.size());
      }
      HAULWAY_TRY(Take(o, done, piece));
    }
    return Status();
  }

  const FormatReader& reader_;
  const std::span<const uint32_t> rows_;
  const LoadOptions& options_;
  const int threads_;
  const uint64_t largest_;
  const uint64_t largest_hole_;
  const bool in_order_;  // See SourceTraits.
  const Taker& take_;
  LoadProgress* const progress_;
  const RequestReader requests_;
  const StorageDecoder decoder_;
  Staging staging_;

  // Positions in rows_, by source offset.
  std::vector<uint32_t> order_;
  std::vector<Way> ways_;                      // Parallel to order_.
  std::vector<std::unique_ptr<Large>> large_;  // Null unless kParts.
  std::vector<Unit> units_;
  bool has_whole_ = false;
};

}  // namespace

Result<LoadStats> LoadPieces(const Checkpoint& checkpoint,
                             std::span<const uint32_t> storages,
                             const LoadOptions& options, uint64_t largest_piece,
                             const Taker& take) {
  auto stats = OrNoMemory([&]() -> Result<LoadStats> {
    const StageClock clock;
    HAULWAY_TRY(CheckRows(checkpoint, storages));
    HAULWAY_ASSIGN(
        const OpenedSource opened,
        OpenForLoading(checkpoint,
                       {.all = FrameRanges(checkpoint, storages, options),
                        .held_bytes = options.memory_budget,
                        .viewed = {}},
                       options));
    // A slot need not be larger than everything that goes through it, including
    // holes.
    uint64_t most = 0;
    if (!CheckedMultiply(storages.size(), opened.choice.largest_hole, &most) ||
        !CheckedAdd(most, FrameBytes(checkpoint, storages), &most)) {
      most = UINT64_MAX;
    }
    most = std::max(most, kPieceUnit);
    for (const uint32_t row : storages) {
      most = std::max(most, checkpoint.index().storages[row].nbytes);
    }
    uint64_t largest = 0;
    if (!CheckedRoundUp(std::clamp<uint64_t>(largest_piece, 1, most),
                        kPieceUnit, &largest) ||
        largest > UINT64_MAX / 4) {
      return Status(Code::kLimit, "pieces of more memory than there is");
    }
    LoadProgress progress(options);
    progress.SetTotal(FrameBytes(checkpoint, storages));
    PieceLoader loader(checkpoint, opened, storages, options, largest, take,
                       &progress);
    HAULWAY_TRY(loader.Run());
    LoadStats counted;
    Record(opened, &counted);
    progress.Record(&counted);
    RecordRemote(opened, &counted);
    counted.tensor_bytes = TensorBytes(checkpoint, storages);
    counted.seconds = clock.seconds();
    return counted;
  });
  if (!stats.ok()) {
    return std::move(stats).status().Of(checkpoint.source().name());
  }
  return stats;
}

}  // namespace haulway
