// Design: the list of storages is cut into groups of about 32 MiB. Each group
// is one load by the engine that also loads whole files. Two groups run at
// once, so that the next keeps the device busy while one ends. A group starts
// only when it fits in the budget together with the groups that the caller has
// not taken yet. Groups are handed over in source order or in order of
// completion.
//
// Reading ahead one storage at a time would take one request per tensor, since
// ranges that are not known together cannot be merged. One group at a time
// would leave the device idle at the end of each group.

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <numeric>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include "base/no_memory.h"
#include "haulway/load.h"
#include "load/choose_io.h"
#include "load/load_opened.h"
#include "load/load_progress.h"

namespace haulway {

namespace {

// Size of a group: small enough that the first storages arrive soon, large
// enough to keep every thread busy.
constexpr uint64_t kGroupBytes = 32 * kMiB;
// Groups loading at once: while one ends, the next keeps the device busy.
constexpr int kGroupsAtOnce = 2;

// A range of `positions` that is loaded together.
struct Group {
  size_t first = 0;  // Index in State::positions.
  size_t count = 0;
  uint64_t bytes = 0;
};

}  // namespace

struct StorageStream::State {
  std::shared_ptr<const Checkpoint> checkpoint;
  std::vector<uint32_t> rows;
  LoadOptions options;
  LoadOrder order = LoadOrder::kPlan;
  OpenedSource opened;
  std::vector<uint32_t> positions;  // Indices in `rows`, by source offset.
  std::vector<Group> groups;
  std::optional<LoadProgress> progress;

  std::mutex mutex;
  std::condition_variable changed;
  bool stop = false;
  std::atomic<bool> cancelled{false};  // Cancels the running loads.
  size_t next_group = 0;               // The next group to load.
  // Groups that are loading, or loaded but not handed over.
  uint64_t held_bytes = 0;
  // Results by group, and the groups in order of completion.
  std::vector<std::vector<Buffer>> done;
  std::vector<bool> is_done;
  std::vector<size_t> completed;
  Status failure;
  LoadStats stats;  // Without the counters of `progress`.
  const StageClock clock;

  // Used only by the thread that calls Next().
  size_t handed_groups = 0;
  std::optional<size_t> current;  // The group that is being handed over.
  std::vector<Buffer> buffers;
  size_t handed = 0;

  // Declared last: joined before the other members are destroyed.
  std::vector<std::jthread> threads;

  void MakeGroups() {
    const auto& storages = checkpoint->index().storages;
    positions.resize(rows.size());
    std::iota(positions.begin(), positions.end(), 0);
    std::ranges::stable_sort(positions, {}, [&](uint32_t position) {
      return storages[rows[position]].frame_offset;
    });
    const uint64_t largest =
        std::clamp<uint64_t>(options.memory_budget / (2 * kGroupsAtOnce),
                             options.chunk_bytes, kGroupBytes);
    for (size_t i = 0; i < positions.size(); ++i) {
      const StorageInfo& info = storages[rows[positions[i]]];
      // Counts the larger of the decoded and the stored size.
      const uint64_t bytes = std::max(info.nbytes, info.stored_bytes);
      if (groups.empty() || groups.back().bytes > largest ||
          bytes > largest - groups.back().bytes) {
        groups.push_back({i, 0, 0});
      }
      ++groups.back().count;
      groups.back().bytes += bytes;
    }
    done.resize(groups.size());
    is_done.resize(groups.size());
    completed.reserve(groups.size());
  }

  // Loads groups in order, each as soon as there is room for it.
  void Run() {
    while (true) {
      std::unique_lock lock(mutex);
      changed.wait(lock, [&] {
        return stop || next_group == groups.size() || HasRoom();
      });
      if (stop || next_group == groups.size()) return;
      const size_t g = next_group++;
      held_bytes += groups[g].bytes;
      lock.unlock();
      auto loaded = OrNoMemory([&] { return LoadGroup(groups[g]); });
      lock.lock();
      if (loaded.ok()) {
        done[g] = *std::move(loaded);
        is_done[g] = true;
        completed.push_back(g);  // Within the reserved capacity.
      } else {
        if (failure.ok()) failure = std::move(loaded).status();
        stop = true;
        cancelled = true;
      }
      changed.notify_all();
      if (stop) return;
    }
  }

  bool HasRoom() const {
    return held_bytes == 0 ||
           (held_bytes <= options.memory_budget &&
            groups[next_group].bytes <= options.memory_budget - held_bytes);
  }

  Result<std::vector<Buffer>> LoadGroup(const Group& group) {
    std::vector<uint32_t> wanted;
    wanted.reserve(group.count);
    for (size_t i = 0; i < group.count; ++i) {
      wanted.push_back(rows[positions[group.first + i]]);
    }
    LoadOptions each = options;
    each.memory_budget = options.memory_budget / (2 * kGroupsAtOnce);
    return LoadOpened(*checkpoint, opened, wanted, each, &*progress);
  }

  Result<std::optional<Loaded>> Next() {
    while (!current.has_value() || handed == buffers.size()) {
      std::unique_lock lock(mutex);
      if (current.has_value()) {
        held_bytes -= groups[*current].bytes;
        current.reset();
        ++handed_groups;
        changed.notify_all();
      }
      if (!failure.ok()) return failure;
      if (handed_groups == groups.size()) return std::optional<Loaded>();
      changed.wait(lock, [&] { return !failure.ok() || IsReady(); });
      if (!failure.ok()) return failure;
      current =
          order == LoadOrder::kPlan ? handed_groups : completed[handed_groups];
      buffers = std::move(done[*current]);
      handed = 0;
    }
    const size_t i = handed++;
    return std::optional<Loaded>(
        {positions[groups[*current].first + i], std::move(buffers[i])});
  }

  bool IsReady() const {
    return order == LoadOrder::kPlan ? is_done[handed_groups]
                                     : completed.size() > handed_groups;
  }
};

StorageStream::StorageStream(std::unique_ptr<State> state)
    : state_(std::move(state)) {}

StorageStream::~StorageStream() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->stop = true;
    state_->cancelled = true;
  }
  state_->changed.notify_all();
  state_->threads.clear();
}

Result<std::unique_ptr<StorageStream>> StorageStream::Open(
    std::shared_ptr<const Checkpoint> checkpoint,
    std::vector<uint32_t> storages, const LoadOptions& options,
    LoadOrder order) {
  const auto open = [&]() -> Result<std::unique_ptr<StorageStream>> {
    HAULWAY_TRY(CheckRows(*checkpoint, storages));
    auto state = std::make_unique<State>();
    HAULWAY_ASSIGN(
        state->opened,
        OpenForLoading(*checkpoint,
                       {.all = FrameRanges(*checkpoint, storages, options),
                        .held_bytes = options.memory_budget,
                        .viewed = ViewRanges(*checkpoint, storages, options)},
                       options));
    state->checkpoint = std::move(checkpoint);
    state->rows = std::move(storages);
    state->options = options;
    state->order = order;
    state->MakeGroups();
    Record(state->opened, &state->stats);
    state->stats.tensor_bytes = TensorBytes(*state->checkpoint, state->rows);
    State* const shared = state.get();
    shared->progress.emplace(shared->options, &shared->cancelled);
    shared->progress->SetTotal(FrameBytes(*shared->checkpoint, shared->rows));
    std::unique_ptr<StorageStream> stream(new StorageStream(std::move(state)));
    const size_t wanted =
        std::min<size_t>(kGroupsAtOnce, shared->groups.size());
    const int threads = shared->opened.choice.threads;
    shared->opened.choice.threads =
        std::max(1, (threads + kGroupsAtOnce - 1) / kGroupsAtOnce);
    for (size_t i = 0; i < wanted; ++i) {
      try {
        shared->threads.emplace_back([shared] { shared->Run(); });
      } catch (const std::system_error&) {
        if (i > 0) break;  // The threads that were started do all the work.
        return Status(Code::kLimit, "no thread can be started");
      }
    }
    return stream;
  };
  if (checkpoint == nullptr) {
    return Status(Code::kInvalidArgument, "checkpoint is null");
  }
  const std::string name(checkpoint->source().name());
  auto stream = OrNoMemory(open);
  if (!stream.ok()) return std::move(stream).status().Of(name);
  return stream;
}

Result<std::optional<StorageStream::Loaded>> StorageStream::Next() {
  auto next = OrNoMemory([&] { return state_->Next(); });
  if (!next.ok()) {
    return std::move(next).status().Of(state_->checkpoint->source().name());
  }
  return next;
}

LoadStats StorageStream::stats() const {
  LoadStats stats = state_->stats;
  state_->progress->Record(&stats);
  RecordRemote(state_->opened, &stats);
  stats.seconds = state_->clock.seconds();
  return stats;
}

Result<LoadStats> LoadEach(
    const Checkpoint& checkpoint, std::span<const uint32_t> storages,
    const LoadOptions& options, LoadOrder order,
    const std::function<Status(size_t position, Buffer bytes)>& take) {
  // A non-owning pointer: the stream ends within this call.
  const std::shared_ptr<const Checkpoint> borrowed(
      std::shared_ptr<const Checkpoint>(), &checkpoint);
  HAULWAY_ASSIGN(
      const auto stream,
      StorageStream::Open(borrowed, {storages.begin(), storages.end()}, options,
                          order));
  while (true) {
    HAULWAY_ASSIGN(auto next, stream->Next());
    if (!next.has_value()) break;
    HAULWAY_TRY(OrNoMemory(
        [&] { return take(next->position, std::move(next->bytes)); }));
  }
  return stream->stats();
}

}  // namespace haulway
