// Choosing how to read, by looking at the source and the machine.

#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

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
};

// Chooses for a request of `bytes`, of which at most `held_bytes` are in memory
// at once. Pure. What the caller asked for is chosen even if it cannot work.
IoChoice ChooseIo(const SourceTraits& traits, const Machine& machine,
                  uint64_t bytes, const LoadOptions& options,
                  uint64_t held_bytes = UINT64_MAX);

// The source of a checkpoint, to be read in the chosen way.
struct OpenedSource {
  std::shared_ptr<const ByteSource> source;
  IoChoice choice;
  SourceTraits traits;
};

// Looks at the ranges, of which at most `held_bytes` are in memory at once,
// chooses, and reopens the source. A way that kAuto chose and that fails falls
// back to kPread, and the reason says so. Every way of loading reads through
// this. Fails with kUnsupported if options.io names a way that is not open.
Result<OpenedSource> OpenForLoading(const Checkpoint& checkpoint,
                                    std::span<const ByteRange> ranges,
                                    const LoadOptions& options,
                                    uint64_t held_bytes = UINT64_MAX);

// Notes what was chosen.
void Record(const OpenedSource& opened, LoadStats* stats);

}  // namespace haulway
