// Choosing how to read, by looking at the source and the machine.

#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "haulway/checkpoint.h"
#include "haulway/load.h"
#include "haulway/source.h"
#include "haulway/status.h"

namespace haulway {

// What this process may use of the machine.
struct Machine {
  int cpus = 1;
  // That can be had without swapping, cgroup limits counted; the page cache
  // counts as free.
  uint64_t available_memory = 0;
};
Machine LookAtMachine();

struct IoChoice {
  IoMode mode = IoMode::kPread;  // Never kAuto.
  int threads = 1;               // That read; at least one.
  int in_flight = 1;             // Requests given to ReadMany() at once.
  std::string reason;            // One phrase, for people.
  // As LoadOptions and RequestLimits have them.
  uint64_t largest_hole = 64 * kKiB;
  uint64_t smallest_straight = 32 * kKiB;
  uint64_t most_gathered = 512 * kKiB;
};

// How much of a request there is.
struct LoadSize {
  uint64_t all = 0;
  uint64_t held = UINT64_MAX;  // In memory at once, at most.
  uint64_t viewed = 0;  // That may be handed out where the source has it.
};

// Chooses for a request. Pure. What the caller asked for is chosen even if it
// cannot work.
IoChoice ChooseIo(const SourceTraits& traits, const Machine& machine,
                  const LoadSize& bytes, const LoadOptions& options);

// The source of a checkpoint, to be read in the chosen way.
struct OpenedSource {
  std::shared_ptr<const ByteSource> source;
  IoChoice choice;
  SourceTraits traits;
  std::optional<RemoteStats> remote;  // What the statistics do not include.
};

// What is to be read.
struct RangesToLoad {
  std::vector<ByteRange> all;
  uint64_t held_bytes = UINT64_MAX;  // In memory at once, at most.
  // The ranges of `all` that may be handed out as views if the source has them.
  std::vector<ByteRange> viewed;
};

// Looks at the ranges, chooses, and reopens the source. A way that kAuto chose
// and that fails falls back to kPread, and the reason says so. Every way of
// loading reads through this. Fails with kUnsupported if options.io names a way
// that is not open.
Result<OpenedSource> OpenForLoading(const Checkpoint& checkpoint,
                                    const RangesToLoad& ranges,
                                    const LoadOptions& options);

// Notes what was chosen.
void Record(const OpenedSource& opened, LoadStats* stats);
// Counts, for a server, the requests to it since `opened` was made, and before
// the first load those of opening, instead of reads of the source.
void RecordRemote(const OpenedSource& opened, LoadStats* stats);
// The options for that source: a server is asked for larger holes.
LoadOptions OptionsFor(const ByteSource& source, LoadOptions options);

}  // namespace haulway
