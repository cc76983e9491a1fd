#include "haulway/load.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <mutex>
#include <numeric>
#include <utility>

#include "base/checked.h"
#include "base/digest.h"
#include "base/no_memory.h"
#include "base/posix.h"
#include "base/text.h"
#include "base/thread_pool.h"
#include "load/payload_stream.h"
#include "load/read_plan.h"
#include "tensor/byte_swap.h"
#include "tensor/host_memory.h"
#include "tensor/payload_digest.h"

namespace haulway {

namespace {

// From here on, digesting a payload as it is read beats doing so afterwards.
constexpr uint64_t kSmallestStream = 256 * kKiB;

std::string Place(const StorageInfo& storage) {
  return fmt::format("storage {}", Quote(storage.key));
}

// A Progress tells the caller what was done, one call at a time.
class Progress {
 public:
  Progress(const LoadOptions& options, uint64_t total)
      : options_(options), total_(total) {}

  // Counts `bytes`; kCancelled if the caller asked to stop.
  Status Advance(uint64_t bytes) {
    if (options_.cancel != nullptr &&
        options_.cancel->load(std::memory_order_relaxed)) {
      return Status(Code::kCancelled, "loading was cancelled");
    }
    if (options_.progress) {
      const std::lock_guard lock(mutex_);
      done_ += bytes;
      options_.progress(done_, total_);
    }
    return Status();
  }

 private:
  const LoadOptions& options_;
  const uint64_t total_;
  std::mutex mutex_;
  uint64_t done_ HAULWAY_GUARDED_BY(mutex_) = 0;
};

// One unit of reading: part of one extent, or many small extents.
struct Task {
  size_t first;  // Index into requests.
  size_t count;
  uint64_t bytes;
};

class Loader {
 public:
  Loader(const Checkpoint& checkpoint, std::span<const uint32_t> rows,
         const LoadOptions& options)
      : reader_(checkpoint.reader()),
        source_(checkpoint.source()),
        index_(checkpoint.index()),
        rows_(rows),
        options_(options),
        threads_(options.threads > 0 ? options.threads : UsableCpus()) {}

  Result<LoadedStorages> Run() {
    const auto start = std::chrono::steady_clock::now();
    loaded_.buffers.resize(rows_.size());
    loaded_.stats.threads = threads_;
    for (const uint32_t row : rows_) {
      loaded_.stats.tensor_bytes += index_.storages[row].nbytes;
    }
    ChooseViews();
    HAULWAY_TRY(PlanRest());
    Progress progress(
        options_, viewed_bytes_ + stream_plan_.read_bytes + plan_.read_bytes);
    HAULWAY_TRY(TakeViews(&progress));
    HAULWAY_TRY(ReadStreams(&progress));
    HAULWAY_TRY(ReadRest(&progress));
    loaded_.stats.seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start)
            .count();
    return std::move(loaded_);
  }

 private:
  const StorageInfo& storage(size_t i) const {
    return index_.storages[rows_[i]];
  }

  // A storage is viewed where the source has its bytes as they are wanted.
  void ChooseViews() {
    bool may_view = options_.io == IoMode::kView;
    if (options_.io == IoMode::kAuto) {
      may_view = source_.View(0, 0).has_value();
    }
    loaded_.stats.path = may_view ? "view" : "read";
    if (!may_view) {
      to_read_.resize(rows_.size());
      std::iota(to_read_.begin(), to_read_.end(), 0);
      return;
    }
    for (uint32_t i = 0; i < rows_.size(); ++i) {
      const StorageInfo& info = storage(i);
      const bool as_wanted = info.encoding == Encoding::kRaw &&
                             info.swap_bytes == 1 &&
                             info.offset % info.alignment() == 0;
      (as_wanted ? viewed_ : to_read_).push_back(i);
      if (as_wanted) viewed_bytes_ += info.nbytes;
    }
  }

  Status TakeViews(Progress* progress) {
    return ParallelFor(
        viewed_.size(), options_.verify ? threads_ : 1,
        [&](uint64_t v) -> Status {
          const uint32_t i = viewed_[v];
          const StorageInfo& info = storage(i);
          if (!RangeFits(info.frame_offset, info.frame_end - info.frame_offset,
                         source_.size())) {
            return Status(Code::kTruncated, "storage ends past the source")
                .At(info.frame_offset)
                .In(Place(info));
          }
          auto frame = source_.View(info.frame_offset,
                                    info.frame_end - info.frame_offset);
          if (!frame.has_value()) {
            return Status(Code::kInvalidArgument,
                          "the source is not in memory, so it has no views");
          }
          const uint64_t before = info.offset - info.frame_offset;
          HAULWAY_TRY(reader_.CheckFrame(
              rows_[i], frame->bytes().subspan(0, before),
              frame->bytes().subspan(before + info.stored_bytes)));
          Buffer payload = frame->Slice(before, info.nbytes);
          HAULWAY_TRY(Verify(rows_[i], frame->bytes().subspan(0, before),
                             frame->bytes().subspan(before + info.stored_bytes),
                             payload.bytes()));
          loaded_.buffers[i] = std::move(payload);
          return progress->Advance(info.nbytes);
        });
  }

  Status PlanRest() {
    // One thread reads, decodes and digests a storage, unless it is so large
    // that the others would wait for it.
    uint64_t total = 0;
    for (const uint32_t i : to_read_) total += storage(i).stored_bytes;
    const uint64_t largest_stream =
        std::max(options_.chunk_bytes, total / static_cast<uint64_t>(threads_));
    std::vector<uint32_t> rest;
    std::vector<const StorageInfo*> streamed;
    std::vector<const StorageInfo*> wanted;
    for (const uint32_t i : to_read_) {
      const StorageInfo& info = storage(i);
      if (!RangeFits(info.frame_offset, info.frame_end - info.frame_offset,
                     source_.size())) {
        return Status(Code::kTruncated, "storage ends past the source")
            .At(info.frame_offset)
            .In(Place(info));
      }
      const bool has_work = info.encoding == Encoding::kEncrypted ||
                            (options_.verify && reader_.has_digests());
      if (has_work && IsStreamable(info) &&
          info.stored_bytes >= kSmallestStream &&
          info.stored_bytes <= largest_stream) {
        streamed_.push_back(i);
        streamed.push_back(&info);
      } else {
        rest.push_back(i);
        wanted.push_back(&info);
      }
    }
    to_read_ = std::move(rest);
    HAULWAY_ASSIGN(stream_plan_, PlanReads(streamed, 0));
    HAULWAY_ASSIGN(plan_, PlanReads(wanted, options_.largest_hole));
    return Status();
  }

  Status ReadStreams(Progress* progress) {
    if (streamed_.empty()) return Status();
    HAULWAY_ASSIGN(const Buffer memory,
                   AllocateBuffer(stream_plan_.memory_bytes));
    loaded_.stats.requests += streamed_.size();
    loaded_.stats.read_bytes += stream_plan_.read_bytes;
    // The largest first, so that no thread is left alone with one.
    std::vector<uint32_t> order(streamed_.size());
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(order, std::greater<>(), [&](uint32_t s) {
      return storage(streamed_[s]).stored_bytes;
    });
    const std::vector<std::span<const uint32_t>> groups = Groups(order);
    return ParallelFor(groups.size(), threads_, [&](uint64_t g) -> Status {
      const std::span<const uint32_t> members = groups[g];
      std::vector<StreamTarget> targets;
      for (const uint32_t s : members) {
        const StorageInfo& info = storage(streamed_[s]);
        targets.push_back(
            {rows_[streamed_[s]], memory.mutable_bytes().subspan(
                                      stream_plan_.placements[s].frame,
                                      info.frame_end - info.frame_offset)});
      }
      size_t failed = 0;
      Status status = StreamStorages(
          reader_, targets, options_.verify,
          [&](uint64_t bytes) { return progress->Advance(bytes); }, &failed);
      if (!status.ok()) {
        return Placed(std::move(status), storage(streamed_[members[failed]]));
      }
      for (const uint32_t s : members) {
        const uint32_t i = streamed_[s];
        loaded_.buffers[i] = ReclaimableSlice(
            memory, stream_plan_.placements[s].payload, storage(i).nbytes);
      }
      return Status();
    });
  }

  // What is read, and digested, together: neighbours, which are of about the
  // same size, but no more than a share that leaves all threads enough to do.
  std::vector<std::span<const uint32_t>> Groups(
      std::span<const uint32_t> order) const {
    const size_t most = options_.verify && reader_.has_digests()
                            ? PayloadsTogether(order.size(), threads_)
                            : 1;
    const uint64_t share =
        stream_plan_.read_bytes / (2 * static_cast<uint64_t>(threads_));
    std::vector<std::span<const uint32_t>> groups;
    uint64_t bytes = 0;
    for (size_t i = 0, first = 0; i < order.size(); ++i) {
      bytes += storage(streamed_[order[i]]).stored_bytes;
      if (i + 1 - first < most && bytes < share && i + 1 < order.size()) {
        continue;
      }
      groups.push_back(order.subspan(first, i + 1 - first));
      first = i + 1;
      bytes = 0;
    }
    return groups;
  }

  Status ReadRest(Progress* progress) {
    if (to_read_.empty()) return Status();
    HAULWAY_ASSIGN(memory_, AllocateBuffer(plan_.memory_bytes));
    HAULWAY_TRY(ReadExtents(progress));
    return FinishStorages();
  }

  Status ReadExtents(Progress* progress) {
    const uint64_t chunk = std::max<uint64_t>(options_.chunk_bytes, kMiB / 4);
    const std::span<std::byte> memory =
        memory_.size() == 0 ? std::span<std::byte>() : memory_.mutable_bytes();
    std::vector<ReadRequest> requests;
    std::vector<Task> tasks;
    for (const Extent& extent : plan_.extents) {
      for (uint64_t done = 0; done < extent.length;) {
        if (tasks.empty() || tasks.back().bytes >= chunk) {
          tasks.push_back({requests.size(), 0, 0});
        }
        const uint64_t length =
            std::min(extent.length - done, chunk - tasks.back().bytes);
        requests.push_back(
            {extent.source_offset + done,
             memory.subspan(extent.memory_offset + done, length)});
        ++tasks.back().count;
        tasks.back().bytes += length;
        done += length;
      }
    }
    loaded_.stats.requests += requests.size();
    loaded_.stats.read_bytes += plan_.read_bytes;
    return ParallelFor(tasks.size(), threads_, [&](uint64_t t) -> Status {
      HAULWAY_TRY(progress->Advance(0));
      const Task& task = tasks[t];
      HAULWAY_TRY(source_.ReadMany(
          std::span(requests).subspan(task.first, task.count)));
      return progress->Advance(task.bytes);
    });
  }

  // Checks frames and digests of what was read, decodes, and hands it out.
  Status FinishStorages() {
    // Few storages a task keep all threads busy on large ones; a task for
    // each of very many would cost more than the work.
    const uint64_t per_task =
        std::max<uint64_t>(1, to_read_.size() / (uint64_t{64} * threads_));
    const uint64_t tasks = (to_read_.size() + per_task - 1) / per_task;
    return ParallelFor(tasks, threads_, [&](uint64_t t) -> Status {
      const uint64_t end =
          std::min<uint64_t>(to_read_.size(), (t + 1) * per_task);
      for (uint64_t r = t * per_task; r < end; ++r) {
        HAULWAY_TRY(Finish(to_read_[r], plan_.placements[r]));
      }
      return Status();
    });
  }

  Status Finish(uint32_t i, const Placement& placement) {
    const StorageInfo& info = storage(i);
    if (info.frame_end == info.frame_offset && !reader_.has_digests()) {
      return Status();
    }
    const uint64_t frame_bytes = info.frame_end - info.frame_offset;
    std::span<std::byte> frame;
    if (frame_bytes != 0) {
      frame = memory_.mutable_bytes().subspan(placement.frame, frame_bytes);
    }
    const uint64_t before_bytes = info.offset - info.frame_offset;
    const auto before = frame.subspan(0, before_bytes);
    const auto after = frame.subspan(before_bytes + info.stored_bytes);
    HAULWAY_TRY(reader_.CheckFrame(rows_[i], before, after));
    if (info.nbytes == 0 || info.encoding == Encoding::kZeros) {
      HAULWAY_TRY(Verify(rows_[i], before, after, {}));
      if (info.nbytes == 0) return Status();
      HAULWAY_ASSIGN(loaded_.buffers[i], AllocateBuffer(info.nbytes));
      return Status();
    }
    const std::span<std::byte> payload =
        memory_.mutable_bytes().subspan(placement.payload, info.nbytes);
    if (info.encoding == Encoding::kDeflate) {
      HAULWAY_TRY(reader_.Decode(rows_[i], before, 0,
                                 frame.subspan(before_bytes, info.stored_bytes),
                                 payload));
    } else if (info.encoding == Encoding::kEncrypted) {
      const int threads =
          info.stored_bytes > options_.chunk_bytes ? threads_ : 1;
      HAULWAY_TRY(DecodeInPlace(reader_, rows_[i], before, payload, threads));
    }
    HAULWAY_TRY(Verify(rows_[i], before, after, payload));
    SwapBytes(payload, info.swap_bytes);
    loaded_.buffers[i] =
        ReclaimableSlice(memory_, placement.payload, info.nbytes);
    return Status();
  }

  // Compares what the index and the frame hold of digests.
  Status Verify(uint32_t row, std::span<const std::byte> before,
                std::span<const std::byte> after,
                std::span<const std::byte> payload) const {
    if (!options_.verify) return Status();
    const StorageInfo& info = index_.storages[row];
    Status status;
    if (info.crc32.has_value() && info.nbytes != 0) {
      const uint32_t found = Crc32(0, payload);
      if (found != *info.crc32) {
        status = Status(Code::kMismatch,
                        fmt::format("CRC-32 differs: expected {}, found {}",
                                    *info.crc32, found));
      }
    }
    if (status.ok() && reader_.has_digests()) {
      status = CheckDigests(reader_, row, before, after, payload);
    }
    return status.ok() ? Status() : Placed(std::move(status), info);
  }

  static Status Placed(Status status, const StorageInfo& info) {
    if (status.code() != Code::kMismatch) return status;
    return std::move(status).At(info.offset).In(Place(info));
  }

  const FormatReader& reader_;
  const ByteSource& source_;
  const CheckpointIndex& index_;
  const std::span<const uint32_t> rows_;
  const LoadOptions& options_;
  const int threads_;

  std::vector<uint32_t> viewed_;  // Positions in rows_, as to_read_.
  uint64_t viewed_bytes_ = 0;
  std::vector<uint32_t> to_read_;
  ReadPlan plan_;  // Of to_read_.
  std::vector<uint32_t> streamed_;
  ReadPlan stream_plan_;  // Of streamed_.
  Buffer memory_;
  LoadedStorages loaded_;
};

}  // namespace

Result<LoadedStorages> LoadStorages(const Checkpoint& checkpoint,
                                    std::span<const uint32_t> storages,
                                    const LoadOptions& options) {
  const size_t count = checkpoint.index().storages.size();
  for (const uint32_t row : storages) {
    if (row >= count) {
      return Status(
          Code::kInvalidArgument,
          fmt::format("no storage {}: expected below {}", row, count));
    }
  }
  auto loaded =
      OrNoMemory([&] { return Loader(checkpoint, storages, options).Run(); });
  if (!loaded.ok()) {
    return std::move(loaded).status().Of(checkpoint.source().name());
  }
  return loaded;
}

}  // namespace haulway
