// Chooses how to read a source, given the source, the machine and the request.

#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "haulway/checkpoint.h"
#include "haulway/load.h"
#include "haulway/machine.h"
#include "haulway/source.h"
#include "haulway/status.h"

namespace haulway {

struct IoChoice {
  IoMode mode = IoMode::kPread;  // Never kAuto.
  int threads = 1;               // Reading threads; at least one.
  int in_flight = 1;             // Requests passed to one ReadMany() call.
  std::string reason;            // One phrase for people to read.
  // The fields of the same names in LoadOptions and RequestLimits.
  uint64_t largest_hole = 64 * kKiB;
  uint64_t smallest_straight = 32 * kKiB;
  uint64_t most_gathered = 512 * kKiB;
};

// The size of a request, in bytes.
struct LoadSize {
  uint64_t all = 0;
  uint64_t held = UINT64_MAX;  // Largest number of bytes in memory at once.
  uint64_t viewed = 0;         // Bytes that may be handed out as views.
};

// Chooses how to read. Pure. Returns the mode that the caller asked for even if
// that mode cannot work.
IoChoice ChooseIo(const SourceTraits& traits, const Machine& machine,
                  const LoadSize& bytes, const LoadOptions& options);

// The source of a checkpoint, opened in the chosen mode.
struct OpenedSource {
  std::shared_ptr<const ByteSource> source;
  IoChoice choice;
  SourceTraits traits;
  std::optional<RemoteStats> remote;  // Counters to subtract from later ones.
};

// The ranges to read.
struct RangesToLoad {
  std::vector<ByteRange> all;
  // Largest number of bytes in memory at once.
  uint64_t held_bytes = UINT64_MAX;
  // The ranges of `all` that may be handed out as views if the source has them.
  std::vector<ByteRange> viewed;
};

// Inspects the ranges, chooses a mode, and reopens the source in that mode. If
// a mode that kAuto chose cannot be opened, the source is opened with kPread,
// and the reason says so. Every kind of load opens its source with this
// function. Fails with kUnsupported if options.io names a mode that the source
// does not have.
Result<OpenedSource> OpenForLoading(const Checkpoint& checkpoint,
                                    const RangesToLoad& ranges,
                                    const LoadOptions& options);

// Records the choice in `stats`.
void Record(const OpenedSource& opened, LoadStats* stats);
// For a server, replaces the count of source reads by the number of HTTP
// requests since `opened` was made. The first load also includes the requests
// that opening the checkpoint took.
void RecordRemote(const OpenedSource& opened, LoadStats* stats);
// Returns `options` with the largest hole for this source: larger for a server.
LoadOptions OptionsFor(const ByteSource& source, LoadOptions options);

}  // namespace haulway
