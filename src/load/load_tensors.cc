// Design: the plan (tensor_plan.h) says what to read. Threads take batches of
// reads, a few per thread, and place elements while they are in cache. Dense
// runs of at least 256 KiB are read directly into the caller's memory. Smaller
// runs are read into a window first, which costs a copy and saves requests.
// Frames are checked before the call succeeds. Storages that must be read whole
// go through LoadPieces(), with the same targets.
//
// One read per row of a slice would be far too many requests, and slices exist
// to avoid reading the whole storage. The statistics name one mode, that of the
// larger part, and sum the counters of both parts.

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/no_memory.h"
#include "base/page_bytes.h"
#include "base/thread_pool.h"
#include "decode/storage_decoder.h"
#include "haulway/load.h"
#include "io/join_ranges.h"
#include "load/choose_io.h"
#include "load/load_progress.h"
#include "load/place_elements.h"
#include "load/request_reader.h"
#include "load/staging.h"
#include "load/tensor_plan.h"
#include "tensor/byte_swap.h"

namespace haulway {

namespace {

// From this size on, reading directly into place is faster than copying from a
// window that is in cache.
constexpr uint64_t kSmallestInPlace = 256 * kKiB;
constexpr uint64_t kSmallestRead = 64 * kKiB;
constexpr uint64_t kLargestRead = 1 * kGiB;
constexpr uint64_t kCacheLine = 64;
// Size of a piece of a storage that is decoded.
constexpr uint64_t kDecodedPiece = 1 * kMiB;
// Batches per thread, so that no thread waits long for the last one.
constexpr uint64_t kBatchesPerThread = 4;

// Reads that one thread starts together.
struct Batch {
  size_t first;
  size_t count;
  uint64_t bytes;
  uint64_t window_bytes;  // Sum over the reads that are not direct.
};

// Returns the largest hole that the source itself reads between two ranges.
uint64_t MergedHole(const SourceTraits& traits) {
  if (!traits.gathers) return 0;
  return traits.is_server() ? kServerHole : kGatheredHole;
}

TensorPlanLimits LimitsOf(const LoadOptions& options) {
  TensorPlanLimits limits;
  limits.largest_hole = options.largest_hole;
  // A quarter of the budget, so that other reads can run while elements are
  // copied from a window.
  limits.largest_read =
      std::clamp(std::min(options.chunk_bytes, options.memory_budget / 4),
                 kSmallestRead, kLargestRead);
  limits.smallest_direct = kSmallestInPlace;
  limits.verify = options.verify;
  return limits;
}

Status CheckOut(const CheckpointIndex& index, const TensorPlan& plan,
                std::span<const TensorRequest> requests) {
  for (const Target& target : plan.targets) {
    if (target.request == Target::kFrame) continue;
    const TensorRequest& request = requests[target.request];
    if (request.out.size() == target.out_bytes) continue;
    return Status(Code::kInvalidArgument,
                  fmt::format("memory for the tensor: expected {} bytes, "
                              "found {}",
                              target.out_bytes, request.out.size()))
        .In(PlaceOf(index, request));
  }
  return Status();
}

class TensorLoader {
 public:
  TensorLoader(const Checkpoint& checkpoint,
               std::span<const TensorRequest> requests,
               const LoadOptions& options)
      : checkpoint_(checkpoint),
        requests_(requests),
        options_(OptionsFor(checkpoint.source(), options)),
        merged_hole_(MergedHole(checkpoint.source().Look({}))),
        progress_(options_),
        windows_(options.memory_budget, &progress_) {}

  Result<LoadStats> Run() {
    const StageClock clock;
    HAULWAY_ASSIGN(plan_,
                   PlanTensorReads(checkpoint_, requests_, LimitsOf(options_)));
    HAULWAY_TRY(CheckOut(checkpoint_.index(), plan_, requests_));
    progress_.SetTotal(plan_.read_bytes + plan_.whole_bytes);
    HAULWAY_ASSIGN(
        const OpenedSource opened,
        OpenForLoading(checkpoint_,
                       // The caller has the memory, whatever is left of it.
                       {.all = Ranges(), .held_bytes = 0, .viewed = {}},
                       options_));
    progress_.AddTime(Stage::kPlan, clock);
    frames_.resize(plan_.frame_bytes);
    LoadStats stats;
    Record(opened, &stats);
    HAULWAY_TRY(ReadAll(opened));
    HAULWAY_TRY(CheckFrames(opened.choice.threads));
    // Taken before ReadWhole(), which counts its own requests.
    LoadStats asked;
    progress_.Record(&asked);
    RecordRemote(opened, &asked);
    HAULWAY_TRY(ReadWhole(&stats));
    HAULWAY_TRY(
        ParallelFor(plan_.zeros.size(), opened.choice.threads, [&](uint64_t z) {
          const Target& target = plan_.targets[plan_.zeros[z]];
          PlaceZeros(target, OutOf(target), requests_[target.request].zeroed);
          return Status();
        }));
    LoadStats own;
    progress_.Record(&own);
    own.requests = asked.requests;
    own.retries = asked.retries;
    AddUp(own, &stats);
    stats.tensor_bytes = plan_.tensor_bytes;
    stats.seconds = clock.seconds();
    return stats;
  }

 private:
  std::span<std::byte> OutOf(const Target& target) {
    if (target.request != Target::kFrame) return requests_[target.request].out;
    return std::span(frames_).subspan(target.out, target.grid.count);
  }

  // Returns the ranges to read, merged into few.
  std::vector<ByteRange> Ranges() const {
    std::vector<ByteRange> ranges;
    for (const TensorRead& read : plan_.reads) {
      if (!ranges.empty() &&
          JoinRanges(&ranges.back(), {read.offset, read.bytes},
                     {.largest_hole = options_.largest_hole})) {
        continue;
      }
      ranges.push_back({read.offset, read.bytes});
    }
    for (const uint32_t row : plan_.whole) {
      const StorageInfo& storage = checkpoint_.index().storages[row];
      ranges.push_back(
          {storage.frame_offset, storage.frame_end - storage.frame_offset});
    }
    return ranges;
  }

  // Returns whether two reads must be of one batch, since the source decodes
  // the storage from its beginning.
  bool IsTogether(const TensorRead& before, const TensorRead& read) const {
    return before.direct && read.direct &&
           plan_.targets[before.target].storage ==
               plan_.targets[read.target].storage;
  }

  std::vector<Batch> MakeBatches(const OpenedSource& opened) const {
    const IoChoice& choice = opened.choice;
    const bool in_order = opened.traits.in_order;
    const uint64_t chunk = LimitsOf(options_).largest_read;
    const uint64_t per_thread =
        plan_.read_bytes /
        (kBatchesPerThread * static_cast<uint64_t>(choice.threads));
    const uint64_t together =
        std::min(chunk * static_cast<uint64_t>(choice.in_flight),
                 std::max(chunk, options_.memory_budget / 2));
    const uint64_t most = std::clamp(per_thread, chunk, together);
    std::vector<Batch> batches;
    uint64_t end = 0;
    for (size_t r = 0; r < plan_.reads.size(); ++r) {
      const TensorRead& read = plan_.reads[r];
      const uint64_t hole = read.offset - std::min(read.offset, end);
      // With the hole, if the source reads it.
      const uint64_t bytes = read.bytes + (hole <= merged_hole_ ? hole : 0);
      const bool is_together =
          in_order && r > 0 && IsTogether(plan_.reads[r - 1], read);
      if (batches.empty() ||
          (batches.back().bytes + bytes > most && !is_together)) {
        batches.push_back({r, 0, 0, 0});
      }
      end = read.offset + read.bytes;
      Batch& batch = batches.back();
      ++batch.count;
      batch.bytes += bytes;
      if (!read.direct) batch.window_bytes += WindowBytes(read);
    }
    return batches;
  }

  // A read has the same offset modulo this in the window as in the source: a
  // page, for direct I/O.
  uint64_t Phase() const { return merged_hole_ == 0 ? kPageBytes : kCacheLine; }

  // Returns the window size of a read.
  uint64_t WindowBytes(const TensorRead& read) const {
    return (read.bytes + 2 * Phase() - 1) / Phase() * Phase();
  }

  Status ReadAll(const OpenedSource& opened) {
    const std::vector<Batch> batches = MakeBatches(opened);
    const RequestReader source(opened, options_, &progress_);
    return ParallelFor(batches.size(), opened.choice.threads,
                       [&](uint64_t b) -> Status {
                         return progress_.Stop(ReadBatch(source, batches[b]));
                       });
  }

  Status ReadBatch(const RequestReader& source, const Batch& batch) {
    HAULWAY_TRY(progress_.CheckCancelled());
    if (batch.window_bytes == 0) return ReadBatch(source, batch, {});
    HAULWAY_ASSIGN(const Staging::Lease window,
                   windows_.Take(batch.window_bytes + kPageBytes));
    return ReadBatch(source, batch, window.bytes());
  }

  Status ReadBatch(const RequestReader& source, const Batch& batch,
                   std::span<std::byte> window) {
    const auto reads = std::span(plan_.reads).subspan(batch.first, batch.count);
    std::vector<ReadRequest> requests;
    requests.reserve(reads.size());
    for (const TensorRead& read : reads) {
      if (read.direct) {
        const Target& target = plan_.targets[read.target];
        requests.push_back(
            {read.offset, OutOf(target).subspan(read.out, read.bytes)});
        continue;
      }
      const auto address = reinterpret_cast<uintptr_t>(window.data());
      const uint64_t phase = (read.offset - address) % Phase();
      requests.push_back({read.offset, window.subspan(phase, read.bytes)});
      window = window.subspan(phase + read.bytes);
    }
    HAULWAY_TRY(source.ReadMany(requests));
    const StageClock clock;
    for (size_t i = 0; i < reads.size(); ++i) {
      const TensorRead& read = reads[i];
      if (read.direct) {
        SwapBytes(requests[i].out, plan_.targets[read.target].swap_bytes);
        continue;
      }
      for (uint32_t u = 0; u < read.uses; ++u) {
        const Target& target = plan_.targets[plan_.uses[read.first_use + u]];
        PlaceElements(target, read.offset, read.end, requests[i].out,
                      OutOf(target));
      }
    }
    progress_.AddTime(Stage::kDecode, clock);
    return Status();
  }

  Status CheckFrames(int threads) {
    const StorageDecoder decoder(checkpoint_.reader(), {});
    // Several frames per task: there may be very many frames.
    constexpr uint64_t kPerTask = 256;
    const uint64_t tasks = (plan_.frames.size() + kPerTask - 1) / kPerTask;
    return ParallelFor(tasks, threads, [&](uint64_t t) -> Status {
      const uint64_t end =
          std::min<uint64_t>(plan_.frames.size(), (t + 1) * kPerTask);
      for (uint64_t f = t * kPerTask; f < end; ++f) {
        const FrameRead& frame = plan_.frames[f];
        const auto bytes = std::span<const std::byte>(frames_).subspan(
            frame.begin, frame.before + frame.after);
        HAULWAY_TRY(decoder.CheckFrame(frame.storage, bytes.first(frame.before),
                                       bytes.subspan(frame.before)));
      }
      return Status();
    });
  }

  Status ReadWhole(LoadStats* stats) {
    if (plan_.whole.empty()) return Status();
    cut_.assign(plan_.whole.size(), 0);
    LoadOptions options = options_;
    if (options_.progress) {
      options.progress = [this](uint64_t done, uint64_t) {
        options_.progress(plan_.read_bytes + done,
                          plan_.read_bytes + plan_.whole_bytes);
      };
    }
    HAULWAY_ASSIGN(
        const LoadStats whole,
        LoadPieces(checkpoint_, plan_.whole, options, kDecodedPiece,
                   [&](const Piece& piece) { return TakePiece(piece); }));
    // The statistics name one mode: that of the part that reads more bytes.
    if (whole.read_bytes >= plan_.read_bytes) {
      *stats = whole;
    } else {
      AddUp(whole, stats);
    }
    return ReadCut(stats);
  }

  Status TakePiece(const Piece& piece) {
    const size_t w = piece.position;
    const uint64_t end = piece.offset + piece.bytes.size();
    const bool is_last =
        end == checkpoint_.index().storages[plan_.whole[w]].nbytes;
    for (const uint32_t t : TargetsOf(w)) {
      const Target& target = plan_.targets[t];
      const uint64_t item = target.grid.item_bytes;
      if (piece.offset % item != 0 || (end % item != 0 && !is_last)) {
        cut_[w] = 1;
        continue;
      }
      PlaceElements(target, piece.offset, end, piece.bytes.bytes(),
                    OutOf(target));
    }
    return Status();
  }

  // Loads the storages whose pieces cut elements. The file determines the piece
  // size, so this can happen.
  Status ReadCut(LoadStats* stats) {
    std::vector<size_t> cut;
    std::vector<uint32_t> rows;
    for (size_t w = 0; w < cut_.size(); ++w) {
      if (cut_[w] == 0) continue;
      cut.push_back(w);
      rows.push_back(plan_.whole[w]);
    }
    if (rows.empty()) return Status();
    LoadOptions options = options_;
    options.progress = nullptr;
    HAULWAY_ASSIGN(const LoadedStorages loaded,
                   LoadStorages(checkpoint_, rows, options));
    stats->requests += loaded.stats.requests;
    stats->read_bytes += loaded.stats.read_bytes;
    for (size_t i = 0; i < cut.size(); ++i) {
      for (const uint32_t t : TargetsOf(cut[i])) {
        const Target& target = plan_.targets[t];
        PlaceElements(target, 0, loaded.buffers[i].size(),
                      loaded.buffers[i].bytes(), OutOf(target));
      }
    }
    return Status();
  }

  // Returns the targets of storage plan_.whole[w].
  std::span<const uint32_t> TargetsOf(size_t w) const {
    const uint32_t begin = plan_.whole_begin[w];
    return std::span(plan_.whole_targets)
        .subspan(begin, plan_.whole_begin[w + 1] - begin);
  }

  const Checkpoint& checkpoint_;
  const std::span<const TensorRequest> requests_;
  const LoadOptions options_;
  const uint64_t merged_hole_;
  LoadProgress progress_;
  Staging windows_;
  TensorPlan plan_;
  std::vector<std::byte> frames_;
  // Parallel to plan_.whole. Not vector<bool>: threads write adjacent items.
  std::vector<char> cut_;
};

// Runs `work`, and adds the name of the source to its failure.
template <class Work>
auto OfSource(const Checkpoint& checkpoint, const Work& work)
    -> decltype(work()) {
  auto result = OrNoMemory(work);
  if (!result.ok()) {
    return std::move(result).status().Of(checkpoint.source().name());
  }
  return result;
}

}  // namespace

Result<uint64_t> RequestBytes(const Checkpoint& checkpoint,
                              const TensorRequest& request) {
  return OfSource(checkpoint, [&]() -> Result<uint64_t> {
    HAULWAY_ASSIGN(const Target target,
                   MakeTarget(checkpoint.index(), request));
    return target.out_bytes;
  });
}

Result<LoadStats> LoadTensors(const Checkpoint& checkpoint,
                              std::span<const TensorRequest> requests,
                              const LoadOptions& options) {
  return OfSource(checkpoint, [&] {
    return TensorLoader(checkpoint, requests, options).Run();
  });
}

Result<PlannedReads> PlanTensors(const Checkpoint& checkpoint,
                                 std::span<const TensorRequest> requests,
                                 const LoadOptions& options) {
  return OfSource(checkpoint, [&]() -> Result<PlannedReads> {
    const TensorPlanLimits limits =
        LimitsOf(OptionsFor(checkpoint.source(), options));
    HAULWAY_ASSIGN(const TensorPlan plan,
                   PlanTensorReads(checkpoint, requests, limits));
    PlannedReads planned;
    planned.tensor_bytes = plan.tensor_bytes;
    planned.read_bytes = plan.read_bytes + plan.whole_bytes;
    planned.reads.reserve(plan.reads.size());
    for (const TensorRead& read : plan.reads) {
      planned.reads.push_back({read.offset, read.bytes});
    }
    for (const uint32_t row : plan.whole) {
      const StorageInfo& storage = checkpoint.index().storages[row];
      for (uint64_t at = storage.frame_offset; at < storage.frame_end;) {
        const uint64_t bytes =
            std::min(limits.largest_read, storage.frame_end - at);
        planned.reads.push_back({at, bytes});
        at += bytes;
      }
    }
    return planned;
  });
}

}  // namespace haulway
