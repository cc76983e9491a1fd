// Design: the plan places all storages in one allocation, and gives each a
// route: views of the source (view_route.h), sequential reads by one thread
// (alone_route.h), decoding from temporary memory (staged_route.h), or joined
// requests (joined_route.h). The last three routes have jobs; threads take the
// jobs one after another, the largest first.
//
// A queue per stage (read, decode, verify) would move every byte into a core's
// cache more than once. One allocation per tensor, as in other loaders, would
// populate its pages one at a time.

#include "load/load_opened.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/thread_pool.h"
#include "decode/encoding_traits.h"
#include "load/alone_route.h"
#include "load/joined_route.h"
#include "load/loading.h"
#include "load/read_plan.h"
#include "load/staged_route.h"
#include "load/view_route.h"

namespace haulway {

namespace {

// From this size on, digesting a payload while it is read is faster than
// digesting it afterwards.
constexpr uint64_t kSmallestStream = 256 * kKiB;
// Smaller requests cost more in system calls than they gain in balance.
constexpr uint64_t kSmallestChunk = 256 * kKiB;
// For servers: the smallest number of requests per thread, few enough that
// waiting for the first byte of each response costs little, many enough that
// all threads end at about the same time; and the largest request, in units of
// LoadOptions::chunk_bytes.
constexpr uint64_t kRemoteRequests = 2;
constexpr uint64_t kRemoteChunks = 4;
// Jobs per thread, so that all threads end at about the same time.
constexpr uint64_t kJobsPerThread = 4;
// Number of threads that prefetch into the page cache. They mostly wait for the
// disk.
constexpr int kFetchThreads = 4;

uint64_t ChunkBytes(const OpenedSource& opened, uint64_t total,
                    const LoadOptions& options) {
  const uint64_t chunk = std::max(options.chunk_bytes, kSmallestChunk);
  if (!opened.traits.is_server()) return chunk;
  const auto threads = static_cast<uint64_t>(opened.choice.threads);
  const uint64_t share = total / (kRemoteRequests * threads);
  return std::max(chunk,
                  std::min(share / kRemoteChunks, chunk) * kRemoteChunks);
}

// Returns the number of prefetch threads: one if everything seems to be in the
// page cache, since then no thread waits.
int FetchThreads(const SourceTraits& traits, const LoadOptions& options) {
  if (traits.resident >= 1) return 1;
  return options.threads > 0 ? options.threads : kFetchThreads;
}

// Returns how storages are read that one thread reads each.
AloneRoute::Pieces PiecesOf(const OpenedSource& opened) {
  if (opened.traits.in_order) return AloneRoute::Pieces::kWhole;
  const IoMode mode = opened.choice.mode;
  const bool is_cached = !opened.traits.remote &&
                         (mode == IoMode::kPread || mode == IoMode::kMmap ||
                          mode == IoMode::kSnapshot);
  return is_cached ? AloneRoute::Pieces::kInCache
                   : AloneRoute::Pieces::kRequests;
}

class Loader {
 public:
  Loader(const Checkpoint& checkpoint, const OpenedSource& opened,
         std::span<const uint32_t> rows, const LoadOptions& options,
         LoadProgress* progress)
      : opened_(opened),
        load_(checkpoint, opened, rows, options,
              ChunkBytes(opened, FrameBytes(checkpoint, rows), options),
              progress),
        views_(load_, SplitViews(), FetchThreads(opened.traits, options)),
        alone_(load_, PiecesOf(opened)),
        staged_(load_),
        joined_(load_) {}

  Result<std::vector<Buffer>> Run() {
    HAULWAY_TRY(Plan());
    HAULWAY_TRY(Allocate());
    HAULWAY_TRY(views_.Run());
    HAULWAY_TRY(FinishEmpty());
    const uint64_t jobs = alone_.jobs() + staged_.jobs() + joined_.jobs();
    HAULWAY_TRY(ParallelFor(jobs, load_.choice.threads, [&](uint64_t job) {
      return load_.progress->Stop(RunJob(job));
    }));
    load_.progress->SetPages(load_.memory.Describe());
    return std::move(load_.buffers);
  }

 private:
  // Fills load_.to_read with the storages to read, and returns the others,
  // which the source can hand out as views.
  std::vector<uint32_t> SplitViews() {
    std::vector<uint32_t> viewed;
    const IoMode mode = load_.choice.mode;
    if (mode != IoMode::kMmap && mode != IoMode::kSnapshot) {
      load_.to_read.resize(load_.rows.size());
      std::iota(load_.to_read.begin(), load_.to_read.end(), 0);
      return viewed;
    }
    for (uint32_t i = 0; i < load_.rows.size(); ++i) {
      (IsUsableInPlace(load_.At(i)) ? viewed : load_.to_read).push_back(i);
    }
    if (mode == IoMode::kSnapshot) ReadOverlaps(&viewed);
    return viewed;
  }

  // Moves storages that overlap an earlier one from `viewed` to load_.to_read:
  // views of a snapshot belong to the caller, so no two may share bytes.
  void ReadOverlaps(std::vector<uint32_t>* viewed) {
    std::ranges::sort(*viewed, {},
                      [&](uint32_t i) { return load_.At(i).offset; });
    uint64_t end = 0;
    std::erase_if(*viewed, [&](uint32_t i) {
      const StorageInfo& info = load_.At(i);
      if (info.nbytes > 0 && info.offset < end) {
        load_.to_read.push_back(i);
        return true;
      }
      end = std::max(end, info.offset + info.nbytes);
      return false;
    });
  }

  Status Plan() {
    const StageClock clock;
    const IoChoice& choice = load_.choice;
    const auto threads = static_cast<uint64_t>(choice.threads);
    // One thread reads, decodes and digests a storage. Exceptions: the storage
    // is so large that the other threads would wait for it, or the source is a
    // server, where this would take two requests and neighbours could share
    // one.
    uint64_t total = 0;
    for (const uint32_t i : load_.to_read) total += load_.At(i).stored_bytes;
    // A source that decodes from the beginning has no other choice.
    const bool in_order = opened_.traits.in_order;
    const uint64_t largest_stream =
        in_order ? UINT64_MAX : std::max(load_.chunk_bytes, total / threads);
    std::vector<WantedStorage> wanted;
    wanted.reserve(load_.to_read.size());
    for (const uint32_t i : load_.to_read) {
      const StorageInfo& info = load_.At(i);
      const bool is_work =
          !opened_.traits.is_server() && load_.decoder.HasWork(load_.rows[i]);
      wanted.push_back({&info, (in_order || is_work) &&
                                   SequenceDecoder::Takes(info) &&
                                   info.stored_bytes >= kSmallestStream &&
                                   info.stored_bytes <= largest_stream});
    }
    HAULWAY_ASSIGN(load_.plan, PlanReads(wanted, choice.largest_hole));
    SplitRoutes();
    alone_.Group();
    staged_.Sort();
    joined_.Cut(
        {.largest_request = load_.chunk_bytes,
         .largest_hole = choice.largest_hole,
         .job_bytes = std::clamp(
             load_.plan.read_bytes / (kJobsPerThread * threads),
             load_.chunk_bytes,
             load_.chunk_bytes * static_cast<uint64_t>(choice.in_flight)),
         .smallest_straight = choice.smallest_straight,
         .most_gathered = choice.most_gathered});
    load_.progress->SetTotal(views_.bytes() + load_.plan.read_bytes);
    load_.progress->AddTime(Stage::kPlan, clock);
    return Status();
  }

  void SplitRoutes() {
    const ReadPlan& plan = load_.plan;
    for (uint32_t o = 0; o < plan.order.size(); ++o) {
      const uint32_t r = plan.order[o];
      const StorageInfo& info = load_.ToRead(r);
      if (info.frame_offset == info.frame_end && info.nbytes == 0) {
        empty_.push_back(r);
        continue;
      }
      switch (plan.placements[r].route) {
        case Route::kAlone:
          alone_.Add(r);
          break;
        case Route::kStaged:
          staged_.Add(o);
          break;
        case Route::kJoined:
          joined_.Add(r);
          break;
      }
    }
  }

  Status Allocate() {
    if (load_.plan.memory_bytes == 0) return Status();
    const bool is_filled = load_.options.pool != nullptr &&
                           std::ranges::all_of(load_.to_read, [&](uint32_t i) {
                             return TraitsOf(load_.At(i)).is_stored;
                           });
    HAULWAY_ASSIGN(load_.memory,
                   LoadMemory::Allocate(load_.options, load_.plan.memory_bytes,
                                        is_filled, load_.progress));
    return Status();
  }

  // Checks storages that have no bytes, neither in the source nor in memory.
  Status FinishEmpty() {
    if (!load_.reader.has_digests()) return Status();
    for (const uint32_t r : empty_) {
      HAULWAY_TRY(load_.decoder.Finish(load_.RowOf(r), {}, {}, 1));
    }
    return Status();
  }

  Status RunJob(uint64_t job) {
    HAULWAY_TRY(load_.progress->CheckCancelled());
    if (job < alone_.jobs()) return alone_.Run(job);
    job -= alone_.jobs();
    if (job < staged_.jobs()) return staged_.Run(job);
    return joined_.Run(job - staged_.jobs());
  }

  const OpenedSource& opened_;
  Loading load_;
  ViewRoute views_;
  AloneRoute alone_;
  StagedRoute staged_;
  JoinedRoute joined_;
  std::vector<uint32_t> empty_;  // Positions in load_.to_read.
};

}  // namespace

Result<std::vector<Buffer>> LoadOpened(const Checkpoint& checkpoint,
                                       const OpenedSource& opened,
                                       std::span<const uint32_t> rows,
                                       const LoadOptions& options,
                                       LoadProgress* progress) {
  return Loader(checkpoint, opened, rows, options, progress).Run();
}

}  // namespace haulway
