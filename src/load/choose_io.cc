#include "load/choose_io.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "haulway/machine.h"
#include "io/join_ranges.h"

namespace haulway {

namespace {

// Below this, reopening the file and losing read-ahead costs more than reading
// through the page cache.
constexpr uint64_t kSmallestDirect = 64 * kMiB;
// If at least this share is in the page cache, reading through the cache is
// faster than reading everything with direct I/O. This is the measured
// break-even point; see docs/loading.md.
constexpr double kWarmShare = 0.6;
// From this size on, a mapping with its lease costs less than a copy.
constexpr uint64_t kSmallestSnapshot = 1 * kMiB;
// Below this, starting a thread takes longer than the work it would do.
constexpr uint64_t kSmallestThreaded = 256 * kKiB;
// Number of threads for sources where threads mostly wait for a device or a
// network.
constexpr int kWaitingThreads = 8;
// Largest padding between storages that are aligned.
constexpr uint64_t kBetweenStorages = 64;
// Requests that a thread submits to io_uring(7) at once.
constexpr int kUringBatch = 8;

std::string Megabytes(uint64_t bytes) {
  return fmt::format("{} MiB", (bytes + kMiB - 1) / kMiB);
}

std::string Share(double share) {
  return fmt::format("{:.0f} % of it is in the page cache", 100 * share);
}

IoMode ModeFor(const SourceTraits& traits, const Machine& machine,
               const LoadSize& bytes, const LoadOptions& options,
               std::string* reason) {
  if (traits.gathers) {
    *reason = "tensors are put together of their chunks";
    return IoMode::kPread;
  }
  if (options.io != IoMode::kAuto) {
    *reason = "as asked";
    return options.io;
  }
  const std::string on =
      traits.file_system.empty() ? "the file system" : traits.file_system;
  if (!traits.local_file) {
    if (traits.views) {
      *reason = "the source is in memory";
      return IoMode::kMmap;
    }
    *reason = traits.remote ? "the source is remote" : "it is no local file";
    return IoMode::kPread;
  }
  const uint64_t held = std::min(bytes.all, bytes.held);
  if (held > machine.available_memory) {
    *reason = fmt::format("{} do not fit into {} of free memory",
                          Megabytes(held), Megabytes(machine.available_memory));
    return IoMode::kMmap;
  }
  if (traits.remote) {
    *reason = fmt::format("{} is remote", on);
    return IoMode::kPread;
  }
  // Reading the missing part fills the page cache.
  const double missing =
      (1 - traits.resident) * static_cast<double>(bytes.viewed);
  if (bytes.viewed >= kSmallestSnapshot && traits.resident >= kWarmShare &&
      missing <= static_cast<double>(machine.available_memory)) {
    *reason = fmt::format("{}, mapped under a lease", Share(traits.resident));
    return IoMode::kSnapshot;
  }
  if (!traits.direct) {
    *reason = fmt::format("{} takes no direct reads", on);
    return IoMode::kPread;
  }
  if (bytes.all < kSmallestDirect) {
    *reason =
        fmt::format("{} are too few for direct reads", Megabytes(bytes.all));
    return IoMode::kPread;
  }
  if (traits.resident >= kWarmShare) {
    *reason = Share(traits.resident);
    return IoMode::kPread;
  }
  *reason =
      fmt::format("{}, {} takes direct reads", Share(traits.resident), on);
  return traits.uring ? IoMode::kUring : IoMode::kDirect;
}

// Returns fixed values for small loads: finding out how much memory is free
// takes about 40 us, longer than reading a small file, and counting the
// processors takes 5 us.
Machine MachineFor(const LoadSize& bytes) {
  if (bytes.all >= kSmallestSnapshot) return LookAtMachine();
  const int cpus = bytes.all < kSmallestThreaded ? 1 : UsableCpus();
  return {.cpus = cpus, .available_memory = UINT64_MAX};
}

uint64_t SumOf(std::span<const ByteRange> ranges) {
  uint64_t bytes = 0;
  for (const ByteRange& range : ranges) {
    bytes += std::min(range.length, UINT64_MAX - bytes);
  }
  return bytes;
}

}  // namespace

IoChoice ChooseIo(const SourceTraits& traits, const Machine& machine,
                  const LoadSize& bytes, const LoadOptions& options) {
  IoChoice choice;
  choice.mode = ModeFor(traits, machine, bytes, options, &choice.reason);
  choice.threads = machine.cpus;
  if (options.threads > 0) {
    choice.threads = options.threads;
  } else if (traits.parallel > 0) {
    choice.threads = traits.parallel;
  } else if (choice.mode == IoMode::kDirect || traits.remote) {
    choice.threads = std::max(machine.cpus, kWaitingThreads);
  }
  choice.threads = std::max(choice.threads, 1);
  choice.largest_hole =
      std::max(LargestHole(traits, options.largest_hole), kBetweenStorages);
  if (traits.is_server()) {  // One more request costs more than any copy.
    choice.smallest_straight = choice.most_gathered = options.chunk_bytes;
  }
  if (choice.mode == IoMode::kUring) choice.in_flight = kUringBatch;
  return choice;
}

Result<OpenedSource> OpenForLoading(const Checkpoint& checkpoint,
                                    const RangesToLoad& ranges,
                                    const LoadOptions& options) {
  OpenedSource opened;
  opened.source = checkpoint.reader().source();
  opened.traits = opened.source->Look(ranges.all);
  opened.remote = opened.source->remote_stats();
  if (opened.remote.has_value()) {
    // The first load's statistics include the requests of opening.
    const RemoteStats opening = checkpoint.TakeOpeningStats();
    opened.remote->requests -= opening.requests;
    opened.remote->retries -= opening.retries;
  }
  const LoadSize bytes{.all = SumOf(ranges.all),
                       .held = ranges.held_bytes,
                       .viewed = SumOf(ranges.viewed)};
  const Machine machine = MachineFor(bytes);
  opened.choice = ChooseIo(opened.traits, machine, bytes, options);
  if (opened.choice.mode == IoMode::kSnapshot && bytes.viewed == 0) {
    opened.choice.mode = IoMode::kPread;
    opened.choice.reason = "nothing of it is handed out as it is";
  }
  const IoMode wanted = opened.choice.mode;
  if (!opened.traits.local_file) {
    // Such a source supports plain reads and, perhaps, views.
    const bool works = wanted == IoMode::kPread ||
                       (wanted == IoMode::kMmap && opened.traits.views);
    if (works) return opened;
    return Status(Code::kUnsupported,
                  fmt::format("the source is no local file: expected io of "
                              "{}, found {}",
                              opened.traits.views ? "auto, mmap or pread"
                                                  : "auto or pread",
                              Name(wanted)));
  }
  auto source = wanted == IoMode::kSnapshot
                    ? opened.source->Snapshot(ranges.viewed)
                    : opened.source->Reopen(wanted);
  if (source.ok()) {
    opened.source = *std::move(source);
    return opened;
  }
  if (options.io != IoMode::kAuto || wanted == IoMode::kPread) {
    return std::move(source).status();
  }
  const std::string why(source.status().message());
  LoadOptions fallback = options;
  fallback.io = IoMode::kPread;
  opened.choice = ChooseIo(opened.traits, machine, bytes, fallback);
  opened.choice.reason = fmt::format("{} failed: {}", Name(wanted), why);
  HAULWAY_ASSIGN(opened.source, opened.source->Reopen(IoMode::kPread));
  return opened;
}

void RecordRemote(const OpenedSource& opened, LoadStats* stats) {
  if (!opened.remote.has_value()) return;
  const auto now = opened.source->remote_stats();
  if (!now.has_value()) return;
  stats->requests = now->requests - opened.remote->requests;
  stats->retries += now->retries - opened.remote->retries;
}

LoadOptions OptionsFor(const ByteSource& source, LoadOptions options) {
  options.largest_hole = LargestHole(source.Look({}), options.largest_hole);
  return options;
}

void Record(const OpenedSource& opened, LoadStats* stats) {
  stats->threads = opened.choice.threads;
  stats->io = opened.choice.mode;
  stats->reason = opened.choice.reason;
  stats->file_system = opened.traits.file_system;
  stats->resident = opened.traits.resident;
}

}  // namespace haulway
