#include "haulway/load_tensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <mutex>
#include <utility>

#include "base/no_memory.h"
#include "base/posix.h"
#include "base/thread_pool.h"
#include "load/place_elements.h"
#include "load/tensor_plan.h"
#include "tensor/byte_swap.h"

namespace haulway {

namespace {

// From here on reading straight into place beats copying out of a window that
// is in cache.
constexpr uint64_t kSmallestDirect = 256 * kKiB;
constexpr uint64_t kSmallestRead = 64 * kKiB;

// Reads that are begun together.
struct Batch {
  size_t first;
  size_t count;
  uint64_t bytes;
  uint64_t window_bytes;  // Of those that are not direct.
};

// WindowPool lends memory to read into, one for each thread that asks.
class WindowPool {
 public:
  Result<Buffer> Take(uint64_t bytes) {
    const std::lock_guard lock(mutex_);
    for (size_t i = 0; i < idle_.size(); ++i) {
      if (idle_[i].size() < bytes) continue;
      Buffer found = std::move(idle_[i]);
      idle_.erase(idle_.begin() + static_cast<ptrdiff_t>(i));
      return found;
    }
    return AllocateBuffer(bytes);
  }
  void Return(Buffer window) {
    const std::lock_guard lock(mutex_);
    idle_.push_back(std::move(window));
  }

 private:
  std::mutex mutex_;
  std::vector<Buffer> idle_ HAULWAY_GUARDED_BY(mutex_);
};

int ThreadsOf(const LoadOptions& options) {
  return options.threads > 0 ? options.threads : UsableCpus();
}

TensorPlanLimits LimitsOf(const LoadOptions& options) {
  TensorPlanLimits limits;
  limits.largest_hole = options.largest_hole;
  limits.largest_read = std::max(options.chunk_bytes, kSmallestRead);
  limits.smallest_direct = kSmallestDirect;
  limits.verify = options.verify;
  return limits;
}

Status CheckOut(const TensorPlan& plan,
                std::span<const TensorRequest> requests) {
  for (const Target& target : plan.targets) {
    if (target.request == Target::kFrame) continue;
    const uint64_t found = requests[target.request].out.size();
    if (found == target.out_bytes) continue;
    return Status(Code::kInvalidArgument,
                  fmt::format("memory for the tensor: expected {} bytes, "
                              "found {}",
                              target.out_bytes, found));
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
        options_(options),
        threads_(ThreadsOf(options)) {}

  Result<LoadStats> Run() {
    const auto start = std::chrono::steady_clock::now();
    HAULWAY_ASSIGN(plan_,
                   PlanTensorReads(checkpoint_, requests_, LimitsOf(options_)));
    HAULWAY_TRY(CheckOut(plan_, requests_));
    total_ = plan_.read_bytes + plan_.whole_bytes;
    stats_.tensor_bytes = plan_.tensor_bytes;
    stats_.threads = threads_;
    stats_.path = "read";
    frames_.resize(plan_.frame_bytes);
    HAULWAY_TRY(ReadAll());
    HAULWAY_TRY(CheckFrames());
    HAULWAY_TRY(ReadWhole());
    HAULWAY_TRY(ParallelFor(plan_.zeros.size(), threads_, [&](uint64_t z) {
      const Target& target = plan_.targets[plan_.zeros[z]];
      PlaceZeros(target, OutOf(target));
      return Status();
    }));
    stats_.seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start)
            .count();
    return std::move(stats_);
  }

 private:
  // Counts bytes as done; kCancelled if the caller asked to stop.
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

  std::span<std::byte> OutOf(const Target& target) {
    if (target.request != Target::kFrame) return requests_[target.request].out;
    return std::span(frames_).subspan(target.out, target.grid.count);
  }

  std::vector<Batch> MakeBatches() const {
    const uint64_t chunk = LimitsOf(options_).largest_read;
    std::vector<Batch> batches;
    for (size_t r = 0; r < plan_.reads.size(); ++r) {
      const TensorRead& read = plan_.reads[r];
      if (batches.empty() || batches.back().bytes + read.bytes > chunk) {
        batches.push_back({r, 0, 0, 0});
      }
      Batch& batch = batches.back();
      ++batch.count;
      batch.bytes += read.bytes;
      if (!read.direct) batch.window_bytes += read.bytes;
    }
    return batches;
  }

  Status ReadAll() {
    const std::vector<Batch> batches = MakeBatches();
    stats_.requests += plan_.reads.size();
    stats_.read_bytes += plan_.read_bytes;
    return ParallelFor(batches.size(), threads_, [&](uint64_t b) -> Status {
      HAULWAY_TRY(Advance(0));
      const Batch& batch = batches[b];
      Buffer window;
      if (batch.window_bytes != 0) {
        HAULWAY_ASSIGN(window, windows_.Take(batch.window_bytes));
      }
      HAULWAY_TRY(ReadBatch(batch, window));
      if (batch.window_bytes != 0) windows_.Return(std::move(window));
      return Advance(batch.bytes);
    });
  }

  Status ReadBatch(const Batch& batch, const Buffer& window) {
    const auto reads = std::span(plan_.reads).subspan(batch.first, batch.count);
    std::vector<ReadRequest> requests;
    requests.reserve(reads.size());
    uint64_t used = 0;
    for (const TensorRead& read : reads) {
      if (read.direct) {
        const Target& target = plan_.targets[read.target];
        requests.push_back(
            {read.offset, OutOf(target).subspan(read.out, read.bytes)});
      } else {
        requests.push_back(
            {read.offset, window.mutable_bytes().subspan(used, read.bytes)});
        used += read.bytes;
      }
    }
    HAULWAY_TRY(checkpoint_.source().ReadMany(requests));
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
    return Status();
  }

  Status CheckFrames() {
    // Few a task: there may be very many.
    constexpr uint64_t kPerTask = 256;
    const uint64_t tasks = (plan_.frames.size() + kPerTask - 1) / kPerTask;
    return ParallelFor(tasks, threads_, [&](uint64_t t) -> Status {
      const uint64_t end =
          std::min<uint64_t>(plan_.frames.size(), (t + 1) * kPerTask);
      for (uint64_t f = t * kPerTask; f < end; ++f) {
        const FrameBytes& frame = plan_.frames[f];
        const auto bytes = std::span<const std::byte>(frames_).subspan(
            frame.begin, frame.before + frame.after);
        HAULWAY_TRY(checkpoint_.reader().CheckFrame(
            frame.storage, bytes.first(frame.before),
            bytes.subspan(frame.before)));
      }
      return Status();
    });
  }

  Status ReadWhole() {
    if (plan_.whole.empty()) return Status();
    LoadOptions options = options_;
    options.io = IoMode::kRead;
    if (options_.progress) {
      options.progress = [this](uint64_t done, uint64_t) {
        options_.progress(plan_.read_bytes + done, total_);
      };
    }
    HAULWAY_ASSIGN(const LoadedStorages loaded,
                   LoadStorages(checkpoint_, plan_.whole, options));
    stats_.requests += loaded.stats.requests;
    stats_.read_bytes += loaded.stats.read_bytes;
    return ParallelFor(plan_.whole.size(), threads_, [&](uint64_t w) {
      TakePiece(w, 0, loaded.buffers[w].bytes());
      return Status();
    });
  }

  // Part of storage plan_.whole[w], from byte `offset` of it on.
  void TakePiece(size_t w, uint64_t offset, std::span<const std::byte> bytes) {
    for (uint32_t t = plan_.whole_begin[w]; t < plan_.whole_begin[w + 1]; ++t) {
      const Target& target = plan_.targets[plan_.whole_targets[t]];
      PlaceElements(target, offset, offset + bytes.size(), bytes,
                    OutOf(target));
    }
  }

  const Checkpoint& checkpoint_;
  const std::span<const TensorRequest> requests_;
  const LoadOptions& options_;
  const int threads_;

  TensorPlan plan_;
  uint64_t total_ = 0;
  std::vector<std::byte> frames_;
  WindowPool windows_;
  LoadStats stats_;
  std::mutex mutex_;
  uint64_t done_ HAULWAY_GUARDED_BY(mutex_) = 0;
};

// Runs `work`; its failure names the source.
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
    const TensorPlanLimits limits = LimitsOf(options);
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
