// How: the plan puts all storages into one allocation; jobs bring it: joined
// extents cut into requests, storages that one thread reads, decodes and
// digests while they are in cache, views that are only checked, and staged ones
// that go through memory of the budget. Whoever brings the last bytes of a
// storage finishes it. The largest go first, small neighbours are digested
// together in lanes, and a snapshot's missing pages are fetched 2 MiB at a time
// by four threads that mostly wait.
//
// A queue for each stage (read, decode, verify) would bring every byte to a
// core's cache more than once. One allocation a tensor, as other loaders have,
// gets its pages one by one.

#include "load/load_opened.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <utility>

#include "base/digest.h"
#include "base/fresh_memory.h"
#include "base/host_memory.h"
#include "base/sigbus_guard.h"
#include "base/thread_pool.h"
#include "decode/encoding_traits.h"
#include "decode/storage_decoder.h"
#include "io/join_ranges.h"
#include "load/memory_pool.h"
#include "load/payload_stream.h"
#include "load/read_plan.h"
#include "load/request_reader.h"
#include "load/staging.h"

namespace haulway {

namespace {

// From here on, digesting a payload as it is read beats doing so afterwards.
constexpr uint64_t kSmallestStream = 256 * kKiB;
// Requests of less cost more in calls than they gain in balance.
constexpr uint64_t kSmallestChunk = 256 * kKiB;
// Requests to a server that each thread makes, at least: so few that waiting
// for the beginning of each answer costs little, and enough that all threads
// end at about the same time; and how long they are at most, in chunks of the
// options.
constexpr uint64_t kRemoteRequests = 2;
constexpr uint64_t kRemoteChunks = 4;
// Jobs of one thread, so that all end at about the same time.
constexpr uint64_t kJobsPerThread = 4;

// What is fetched into the page cache at once, and by how many, who wait more
// than they work.
constexpr uint64_t kFetchBytes = 2 * kMiB;
constexpr int kFetchThreads = 4;
constexpr uint64_t kPageBytes = 4 * kKiB;

// The jobs that bring a storage, the first and the last.
struct JobSpan {
  uint32_t first;
  uint32_t last;
};

// What one job brings.
struct JobFacts {
  uint64_t memory_begin;
  uint64_t memory_end;
  uint32_t first_storage;  // In joined_.
  uint32_t end_storage;
  // CRC-32 of its part of the storage that begins before it, and of the one
  // that ends after it.
  uint32_t head_crc32 = 0;
  uint32_t tail_crc32 = 0;
};

class Loader {
 public:
  Loader(const Checkpoint& checkpoint, const OpenedSource& opened,
         std::span<const uint32_t> rows, const LoadOptions& options,
         LoadProgress* progress)
      : reader_(checkpoint.reader()),
        index_(checkpoint.index()),
        rows_(rows),
        options_(options),
        choice_(opened.choice),
        fetch_threads_(FetchThreads(opened.traits, options)),
        is_cached_(!opened.traits.remote &&
                   (choice_.mode == IoMode::kPread ||
                    choice_.mode == IoMode::kMmap ||
                    choice_.mode == IoMode::kSnapshot)),
        is_server_(opened.traits.is_server()),
        chunk_bytes_(ChunkBytes(opened, FrameBytes(checkpoint, rows), options)),
        progress_(progress),
        requests_(opened, options, progress),
        decoder_(reader_,
                 {.verify = options.verify,
                  .is_zeroed = options.allocate == nullptr},
                 progress),
        staging_(options.memory_budget, progress) {}

  Result<std::vector<Buffer>> Run() {
    buffers_.resize(rows_.size());
    HAULWAY_TRY(Plan());
    HAULWAY_TRY(Allocate());
    HAULWAY_TRY(FetchViews());
    HAULWAY_TRY(TakeViews());
    HAULWAY_TRY(FinishEmpty());
    const uint64_t jobs =
        groups_.size() + staged_.size() + request_plan_.jobs.size();
    HAULWAY_TRY(ParallelFor(jobs, choice_.threads, [&](uint64_t job) {
      return progress_->Stop(RunJob(job));
    }));
    progress_->SetPages(pooled_ != nullptr && fresh_.buffer().size() == 0
                            ? "memory of an earlier load"
                            : fresh_.Describe());
    return std::move(buffers_);
  }

 private:
  static uint64_t ChunkBytes(const OpenedSource& opened, uint64_t total,
                             const LoadOptions& options) {
    const uint64_t chunk = std::max(options.chunk_bytes, kSmallestChunk);
    if (!opened.traits.is_server()) return chunk;
    const auto threads = static_cast<uint64_t>(opened.choice.threads);
    const uint64_t share = total / (kRemoteRequests * threads);
    return std::max(chunk,
                    std::min(share / kRemoteChunks, chunk) * kRemoteChunks);
  }

  // Where nothing seems to be missing, there is nobody to wait for.
  static int FetchThreads(const SourceTraits& traits,
                          const LoadOptions& options) {
    if (traits.resident >= 1) return 1;
    return options.threads > 0 ? options.threads : kFetchThreads;
  }

  // A run of plan_.order whose storages are staged together.
  struct StagedRun {
    uint32_t first;
    uint32_t count;
    uint64_t offset;  // In the source.
    uint64_t length;
  };

  // The storage at position `i` in rows_.
  const StorageInfo& storage(uint32_t i) const {
    return index_.storages[rows_[i]];
  }
  // The storage at position `r` in to_read_, as in the plan.
  const StorageInfo& read_storage(uint32_t r) const {
    return storage(to_read_[r]);
  }

  Status Plan() {
    const StageClock clock;
    SplitViews();
    // One thread reads, decodes and digests a storage, unless it is so large
    // that the others would wait for it, or would be two requests to a server
    // where neighbours can come together.
    uint64_t total = 0;
    for (const uint32_t i : to_read_) total += storage(i).stored_bytes;
    const uint64_t largest_stream =
        std::max(chunk_bytes_, total / static_cast<uint64_t>(choice_.threads));
    std::vector<WantedStorage> wanted;
    wanted.reserve(to_read_.size());
    for (const uint32_t i : to_read_) {
      const StorageInfo& info = storage(i);
      wanted.push_back({&info, !is_server_ && decoder_.HasWork(rows_[i]) &&
                                   SequenceDecoder::Takes(info) &&
                                   info.stored_bytes >= kSmallestStream &&
                                   info.stored_bytes <= largest_stream});
    }
    HAULWAY_ASSIGN(plan_, PlanReads(wanted, choice_.largest_hole));
    const uint64_t per_thread =
        plan_.read_bytes /
        (kJobsPerThread * static_cast<uint64_t>(choice_.threads));
    request_plan_ = CutRequests(
        plan_.extents,
        {.largest_request = chunk_bytes_,
         .largest_hole = choice_.largest_hole,
         .job_bytes = std::clamp(
             per_thread, chunk_bytes_,
             chunk_bytes_ * static_cast<uint64_t>(choice_.in_flight)),
         .smallest_straight = choice_.smallest_straight,
         .most_gathered = choice_.most_gathered});
    SplitRoutes();
    GroupAlone();
    FindJobs();
    progress_->SetTotal(viewed_bytes_ + plan_.read_bytes);
    progress_->AddTime(Stage::kPlan, clock);
    return Status();
  }

  // A storage is viewed where the source has its bytes as they are wanted.
  void SplitViews() {
    if (choice_.mode != IoMode::kMmap && choice_.mode != IoMode::kSnapshot) {
      to_read_.resize(rows_.size());
      std::iota(to_read_.begin(), to_read_.end(), 0);
      return;
    }
    for (uint32_t i = 0; i < rows_.size(); ++i) {
      (IsUsableInPlace(storage(i)) ? viewed_ : to_read_).push_back(i);
    }
    if (choice_.mode == IoMode::kSnapshot) ReadOverlaps();
    for (const uint32_t i : viewed_) viewed_bytes_ += storage(i).nbytes;
  }

  // Views of a snapshot are the caller's own, so no two may share bytes.
  void ReadOverlaps() {
    std::ranges::sort(viewed_, {},
                      [&](uint32_t i) { return storage(i).offset; });
    uint64_t end = 0;
    std::erase_if(viewed_, [&](uint32_t i) {
      const StorageInfo& info = storage(i);
      if (info.nbytes > 0 && info.offset < end) {
        to_read_.push_back(i);
        return true;
      }
      end = std::max(end, info.offset + info.nbytes);
      return false;
    });
  }

  void SplitRoutes() {
    bool extends = false;  // Whether the last run is right before.
    for (uint32_t o = 0; o < plan_.order.size(); ++o) {
      const uint32_t r = plan_.order[o];
      const StorageInfo& info = read_storage(r);
      const Route route = plan_.placements[r].route;
      if (info.frame_offset == info.frame_end && info.nbytes == 0) {
        empty_.push_back(r);
        continue;
      }
      if (route == Route::kAlone) alone_.push_back(r);
      if (route == Route::kJoined) joined_.push_back(r);
      if (route != Route::kStaged) {
        extends = false;
        continue;
      }
      if (extends) {
        StagedRun& run = staged_.back();
        ByteRange read = {run.offset, run.length};
        if (JoinRanges(&read,
                       {info.frame_offset, info.frame_end - info.frame_offset},
                       {.largest_hole = choice_.largest_hole,
                        .largest_read = chunk_bytes_,
                        .may_overlap = false})) {
          run.length = read.length;
          ++run.count;
          continue;
        }
      }
      staged_.push_back(
          {o, 1, info.frame_offset, info.frame_end - info.frame_offset});
      extends = true;
    }
    // The largest first, so that no thread is left alone with one.
    std::ranges::stable_sort(alone_, std::greater<>(), [&](uint32_t r) {
      return read_storage(r).stored_bytes;
    });
    std::ranges::stable_sort(staged_, std::greater<>(), &StagedRun::length);
  }

  // What one thread reads and digests together: neighbours in alone_, which
  // are of about the same size, but no more than leaves all threads enough.
  void GroupAlone() {
    const size_t most = options_.verify && reader_.has_digests()
                            ? PayloadsTogether(alone_.size(), choice_.threads)
                            : 1;
    groups_ = GroupPayloads(alone_, most, choice_.threads, [&](uint32_t r) {
      return read_storage(r).stored_bytes;
    });
  }

  // Which jobs bring each joined storage. All go up in memory.
  void FindJobs() {
    const RequestPlan& plan = request_plan_;
    for (const Job& job : plan.jobs) {
      const PlannedRequest& first = plan.requests[job.first_request];
      const PlannedRequest& last =
          plan.requests[job.first_request + job.requests - 1];
      const Extent& last_part = plan.parts[last.first_part + last.parts - 1];
      jobs_.push_back({plan.parts[first.first_part].memory_offset,
                       last_part.memory_offset + last_part.length, 0, 0});
    }
    spans_.resize(joined_.size());
    jobs_left_ = std::make_unique<std::atomic<uint32_t>[]>(joined_.size());
    uint32_t job = 0;
    for (uint32_t p = 0; p < joined_.size(); ++p) {
      const StorageInfo& info = read_storage(joined_[p]);
      const uint64_t begin = plan_.placements[joined_[p]].frame;
      const uint64_t end = begin + (info.frame_end - info.frame_offset);
      while (jobs_[job].memory_end <= begin) ++job;
      uint32_t last = job;
      while (jobs_[last].memory_end < end) ++last;
      spans_[p] = {job, last};
      jobs_left_[p].store(last - job + 1, std::memory_order_relaxed);
    }
    uint32_t begin = 0;
    uint32_t end = 0;
    for (uint32_t j = 0; j < jobs_.size(); ++j) {
      while (begin < spans_.size() && spans_[begin].last < j) ++begin;
      while (end < spans_.size() && spans_[end].first <= j) ++end;
      jobs_[j].first_storage = begin;
      jobs_[j].end_storage = end;
    }
  }

  Status Allocate() {
    if (plan_.memory_bytes == 0) return Status();
    const StageClock clock;
    if (options_.allocate) {
      HAULWAY_ASSIGN(memory_, AllocateFor(options_, plan_.memory_bytes));
    } else if (!TakePooled()) {
      HAULWAY_ASSIGN(fresh_, AllocateFresh());
      memory_ = fresh_.buffer();
      if (IsPooled()) {
        pooled_ = PooledMemory::Follow(*options_.pool, std::move(memory_));
        memory_ = pooled_->buffer();
      }
    }
    progress_->AddTime(Stage::kAllocate, clock);
    return Status();
  }

  // Memory that is kept for later is given back if there is no other.
  Result<FreshMemory> AllocateFresh() const {
    auto fresh = FreshMemory::Allocate(plan_.memory_bytes);
    if (fresh.ok() || options_.pool == nullptr) return fresh;
    options_.pool->Clear();
    return FreshMemory::Allocate(plan_.memory_bytes);
  }

  bool IsPooled() const {
    return options_.pool != nullptr &&
           plan_.memory_bytes >= PooledMemory::kSmallest;
  }

  // Takes memory of an earlier load, which is not zeroed, if all of it will be
  // written.
  bool TakePooled() {
    if (!IsPooled() || !std::ranges::all_of(to_read_, [&](uint32_t i) {
          return TraitsOf(index_.storages[rows_[i]]).is_stored;
        })) {
      return false;
    }
    pooled_ = PooledMemory::Take(*options_.pool, plan_.memory_bytes);
    if (pooled_ == nullptr) return false;
    memory_ = pooled_->buffer();
    return true;
  }

  std::span<std::byte> Memory(uint64_t offset, uint64_t length) const {
    if (length == 0) return {};
    return memory_.mutable_bytes().subspan(offset, length);
  }

  // The same, made present for what will be written there.
  std::span<std::byte> Wanted(uint64_t offset, uint64_t length) {
    const auto memory = Memory(offset, length);
    BringIn(memory);
    return memory;
  }

  void BringIn(std::span<const std::byte> memory) {
    const StageClock clock;
    fresh_.BringIn(memory);
    progress_->AddTime(Stage::kAllocate, clock);
  }

  // Hands out the payload of a storage.
  void Give(uint32_t r) {
    const uint64_t offset = plan_.placements[r].payload;
    const uint64_t length = read_storage(r).nbytes;
    if (length == 0) return;
    Buffer& buffer = buffers_[to_read_[r]];
    if (options_.allocate) {
      buffer = memory_.Slice(offset, length);
    } else if (pooled_ != nullptr) {
      buffer = pooled_->Slice(offset, length);
    } else {
      buffer = ReclaimableSlice(memory_, offset, length);
    }
  }

  // What is missing of a snapshot would be read a few pages at a time as it is
  // touched: a third as fast.
  Status FetchViews() {
    if (choice_.mode != IoMode::kSnapshot) return Status();
    const StageClock clock;
    std::vector<ByteRange> pieces;
    const auto add = [&](uint64_t begin, uint64_t end) {
      if (!pieces.empty()) {
        // Neighbours are one piece, as they are neighbours in pages.
        ByteRange& last = pieces.back();
        const uint64_t last_end = last.offset + last.length;
        if (begin >= last_end && begin - last_end < kPageBytes &&
            end - last.offset <= kFetchBytes) {
          last.length = end - last.offset;
          return;
        }
      }
      for (; begin < end; begin += pieces.back().length) {
        pieces.push_back({begin, std::min(kFetchBytes, end - begin)});
      }
    };
    for (const uint32_t i : viewed_) {
      add(storage(i).frame_offset, storage(i).frame_end);
    }
    const Status status =
        ParallelFor(pieces.size(), fetch_threads_, [&](uint64_t p) {
          HAULWAY_TRY(progress_->CheckCancelled());
          return progress_->Stop(
              requests_.source().Prefetch(pieces[p].offset, pieces[p].length));
        });
    progress_->AddTime(Stage::kRead, clock);
    return status;
  }

  Status TakeViews() {
    std::vector<Buffer> frames;
    frames.reserve(viewed_.size());
    for (const uint32_t i : viewed_) {
      const StorageInfo& info = storage(i);
      auto frame = requests_.source().View(info.frame_offset,
                                           info.frame_end - info.frame_offset);
      if (!frame.has_value()) {
        return Status(Code::kTruncated, "the file was cut while it was mapped")
            .At(info.frame_offset);
      }
      frames.push_back(*std::move(frame));
    }
    HAULWAY_ASSIGN(const auto crc32s, LargeCrc32s(frames));
    return ParallelFor(viewed_.size(), options_.verify ? choice_.threads : 1,
                       [&](uint64_t v) -> Status {
                         const uint32_t i = viewed_[v];
                         const StorageInfo& info = storage(i);
                         const auto bytes = SplitFrame(
                             info, {const_cast<std::byte*>(frames[v].data()),
                                    static_cast<size_t>(frames[v].size())});
                         HAULWAY_TRY(progress_->CheckCancelled());
                         HAULWAY_TRY(CheckView(rows_[i], bytes, crc32s[v]));
                         buffers_[i] = frames[v].Slice(
                             info.offset - info.frame_offset, info.nbytes);
                         return progress_->Advance(info.nbytes);
                       });
  }

  // The pages of a mapping may be gone.
  Status CheckView(uint32_t row, const StoredBytes& bytes,
                   std::optional<uint32_t> crc32) const {
    const GuardedSection guard;
    Status status = decoder_.Check(row, bytes, crc32);
    HAULWAY_TRY(guard.Check());
    return status;
  }

  // Returns the CRC-32 of views so large that one thread would be at work when
  // all others are done; all threads take them, piece by piece. Parallel to
  // viewed_.
  Result<std::vector<std::optional<uint32_t>>> LargeCrc32s(
      std::span<const Buffer> frames) const {
    std::vector<std::optional<uint32_t>> crc32s(viewed_.size());
    for (size_t v = 0; v < viewed_.size() && choice_.threads > 1; ++v) {
      const StorageInfo& info = storage(viewed_[v]);
      if (!decoder_.TakesCrc32(rows_[viewed_[v]]) ||
          info.nbytes <= 2 * chunk_bytes_) {
        continue;
      }
      const auto payload = frames[v].bytes().subspan(
          info.offset - info.frame_offset, info.nbytes);
      const auto piece = [&](uint64_t p) {
        return payload.subspan(
            p * chunk_bytes_,
            std::min(chunk_bytes_, payload.size() - p * chunk_bytes_));
      };
      std::vector<uint32_t> found((payload.size() + chunk_bytes_ - 1) /
                                  chunk_bytes_);
      HAULWAY_TRY(
          ParallelFor(found.size(), choice_.threads, [&](uint64_t p) -> Status {
            HAULWAY_TRY(progress_->CheckCancelled());
            const StageClock clock;
            const GuardedSection guard;
            found[p] = Crc32(0, piece(p));
            progress_->AddTime(Stage::kVerify, clock);
            return guard.Check();
          }));
      uint32_t crc32 = 0;  // The CRC-32 of no bytes.
      for (uint64_t p = 0; p < found.size(); ++p) {
        crc32 = Crc32Join(crc32, found[p], piece(p).size());
      }
      crc32s[v] = crc32;
    }
    return crc32s;
  }

  Status RunJob(uint64_t job) {
    HAULWAY_TRY(progress_->CheckCancelled());
    if (job < groups_.size()) return LoadTogether(groups_[job]);
    job -= groups_.size();
    if (job < staged_.size()) return LoadStaged(staged_[job]);
    return LoadJoined(job - staged_.size());
  }

  // A storage that is read as a sequence.
  struct Sequence {
    uint32_t r;
    PayloadStream stream;
    std::span<std::byte> rest;  // Payload bytes that are not read yet.
    uint64_t step;
  };

  Result<Sequence> Begin(uint32_t r, uint64_t piece_bytes) const {
    const StorageInfo& info = read_storage(r);
    const auto memory =
        Memory(plan_.placements[r].frame, info.frame_end - info.frame_offset);
    const auto frame = memory.first(info.offset - info.frame_offset);
    HAULWAY_ASSIGN(
        PayloadStream stream,
        PayloadStream::Open(reader_, rows_[to_read_[r]], options_.verify,
                            requests_, progress_, frame));
    HAULWAY_ASSIGN(const uint64_t step, stream.Step(piece_bytes));
    return Sequence{r, std::move(stream),
                    memory.subspan(frame.size(), info.stored_bytes), step};
  }

  // A piece of each in turn; those of one turn stay in a core's cache.
  Status LoadTogether(std::span<const uint32_t> group) {
    // Elsewhere than in the page cache a short read takes as long as a long
    // one.
    const uint64_t piece_bytes =
        is_cached_ ? PieceBytes(group.size()) : chunk_bytes_;
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
        BringIn(piece);
        streams.push_back(&sequence.stream);
        pieces.push_back(piece);
      }
      if (streams.empty()) break;
      HAULWAY_TRY(PayloadStream::NextTogether(streams, pieces));
    }
    for (Sequence& sequence : sequences) {
      HAULWAY_TRY(sequence.stream.Finish());
      Give(sequence.r);
    }
    return Status();
  }

  Status LoadStaged(const StagedRun& run) {
    HAULWAY_ASSIGN(const Staging::Lease lease, staging_.Take(run.length));
    const auto stored = lease.bytes();
    for (uint64_t done = 0; done < stored.size(); done += chunk_bytes_) {
      HAULWAY_TRY(requests_.Read(
          run.offset + done,
          stored.subspan(done, std::min(chunk_bytes_, stored.size() - done))));
    }
    for (uint32_t o = run.first; o < run.first + run.count; ++o) {
      const uint32_t r = plan_.order[o];
      const StorageInfo& info = read_storage(r);
      const auto frame = stored.subspan(info.frame_offset - run.offset,
                                        info.frame_end - info.frame_offset);
      const auto payload = Memory(plan_.placements[r].payload, info.nbytes);
      // Zeros that a file claims are not written, and take no memory.
      const uint32_t row = rows_[to_read_[r]];
      if (decoder_.Writes(row)) BringIn(payload);
      HAULWAY_TRY(decoder_.Finish(row, SplitFrame(info, frame), payload, 1));
      Give(r);
    }
    return Status();
  }

  Status LoadJoined(uint64_t j) {
    const Job& job = request_plan_.jobs[j];
    const auto requests = std::span(request_plan_.requests)
                              .subspan(job.first_request, job.requests);
    std::vector<ReadRequest> together;
    for (const PlannedRequest& request : requests) {
      if (request.parts > 1) {
        HAULWAY_TRY(Gather(request));
        continue;
      }
      const Extent& part = request_plan_.parts[request.first_part];
      const auto out = Wanted(part.memory_offset, part.length);
      if (choice_.in_flight > 1) {
        together.push_back({part.source_offset, out});
      } else {
        HAULWAY_TRY(requests_.Read(part.source_offset, out));
      }
    }
    if (!together.empty()) HAULWAY_TRY(requests_.ReadMany(together));
    for (uint32_t p = jobs_[j].first_storage; p < jobs_[j].end_storage; ++p) {
      if (spans_[p].first != spans_[p].last) AddCrc32(j, p);
      if (jobs_left_[p].fetch_sub(1, std::memory_order_acq_rel) == 1) {
        HAULWAY_TRY(FinishJoined(p));
      }
    }
    return Status();
  }

  // Reads many small extents at once, and copies them to their places.
  Status Gather(const PlannedRequest& request) {
    HAULWAY_ASSIGN(const Staging::Lease lease, staging_.Take(request.length));
    HAULWAY_TRY(requests_.Read(request.offset, lease.bytes()));
    for (uint32_t i = 0; i < request.parts; ++i) {
      const Extent& part = request_plan_.parts[request.first_part + i];
      std::memcpy(Wanted(part.memory_offset, part.length).data(),
                  lease.bytes().data() + (part.source_offset - request.offset),
                  part.length);
    }
    return Status();
  }

  // Takes the CRC-32 of the part of a storage that job `j` brings, while the
  // part is in cache.
  void AddCrc32(uint64_t j, uint32_t p) {
    if (!decoder_.TakesCrc32(rows_[to_read_[joined_[p]]])) return;
    const StageClock clock;
    JobFacts& job = jobs_[j];
    const auto [begin, end] = PartOf(job, p);
    uint32_t& crc32 = spans_[p].first < j ? job.head_crc32 : job.tail_crc32;
    crc32 = Crc32(0, Memory(begin, end - begin));
    progress_->AddTime(Stage::kVerify, clock);
  }

  // Where the part of a payload lies in memory that a job brings.
  std::pair<uint64_t, uint64_t> PartOf(const JobFacts& job, uint32_t p) const {
    const uint64_t begin = plan_.placements[joined_[p]].payload;
    const uint64_t end = begin + read_storage(joined_[p]).stored_bytes;
    const uint64_t from = std::clamp(job.memory_begin, begin, end);
    return {from, std::clamp(job.memory_end, from, end)};
  }

  Status FinishJoined(uint32_t p) {
    const uint32_t r = joined_[p];
    const StorageInfo& info = read_storage(r);
    const uint32_t row = rows_[to_read_[r]];
    const auto bytes = SplitFrame(
        info,
        Memory(plan_.placements[r].frame, info.frame_end - info.frame_offset));
    std::optional<uint32_t> crc32;
    const JobSpan span = spans_[p];
    if (span.first != span.last && decoder_.TakesCrc32(row)) {
      crc32 = jobs_[span.first].tail_crc32;
      for (uint32_t j = span.first + 1; j <= span.last; ++j) {
        const auto [begin, end] = PartOf(jobs_[j], p);
        crc32 = Crc32Join(*crc32, jobs_[j].head_crc32, end - begin);
      }
    }
    const int threads = info.stored_bytes > chunk_bytes_ ? choice_.threads : 1;
    HAULWAY_TRY(decoder_.Finish(row, bytes, bytes.stored, threads, crc32));
    Give(r);
    return Status();
  }

  // Storages of no bytes, in the source or in memory.
  Status FinishEmpty() {
    for (const uint32_t r : empty_) {
      if (!reader_.has_digests()) break;
      HAULWAY_TRY(decoder_.Finish(rows_[to_read_[r]], {}, {}, 1));
    }
    return Status();
  }

  const FormatReader& reader_;
  const CheckpointIndex& index_;
  const std::span<const uint32_t> rows_;
  const LoadOptions& options_;
  const IoChoice& choice_;
  const int fetch_threads_;
  const bool is_cached_;
  const bool is_server_;
  const uint64_t chunk_bytes_;
  LoadProgress* const progress_;
  const RequestReader requests_;
  const StorageDecoder decoder_;
  Staging staging_;

  std::vector<uint32_t> viewed_;  // Positions in rows_, as to_read_.
  uint64_t viewed_bytes_ = 0;
  std::vector<uint32_t> to_read_;
  ReadPlan plan_;  // Plan for to_read_; the next four hold positions there.
  std::vector<uint32_t> empty_;
  std::vector<std::span<const uint32_t>> groups_;  // Parts of alone_.
  std::vector<uint32_t> alone_;
  std::vector<uint32_t> joined_;  // By offset.
  std::vector<StagedRun> staged_;
  RequestPlan request_plan_;
  std::vector<JobFacts> jobs_;  // Parallel to request_plan_.jobs.
  std::vector<JobSpan> spans_;  // Parallel to joined_.
  std::unique_ptr<std::atomic<uint32_t>[]> jobs_left_;
  // Empty if the caller allocates, or the memory is an earlier load's.
  FreshMemory fresh_;
  std::shared_ptr<PooledMemory> pooled_;  // Null without a pool.
  Buffer memory_;
  std::vector<Buffer> buffers_;
};

}  // namespace

Result<Buffer> AllocateFor(const LoadOptions& options, uint64_t bytes) {
  if (!options.allocate) return AllocateBuffer(bytes);
  HAULWAY_ASSIGN(Buffer memory, options.allocate(bytes));
  if (!memory.writable() || memory.size() < bytes) {
    return Status(Code::kInvalidArgument,
                  fmt::format("LoadOptions::allocate: expected {} bytes to "
                              "write, found {}",
                              bytes, memory.writable() ? memory.size() : 0));
  }
  return memory;
}

Result<std::vector<Buffer>> LoadOpened(const Checkpoint& checkpoint,
                                       const OpenedSource& opened,
                                       std::span<const uint32_t> rows,
                                       const LoadOptions& options,
                                       LoadProgress* progress) {
  return Loader(checkpoint, opened, rows, options, progress).Run();
}

}  // namespace haulway
