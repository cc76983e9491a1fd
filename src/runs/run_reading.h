// The checkpoints of a run in their order, and the check of one of them.

#pragma once

#include <string_view>
#include <vector>

#include "haulway/runs.h"
#include "haulway/status.h"
#include "runs/run_folder.h"
#include "runs/run_layout.h"

namespace haulway {

// How often a run is listed that changes all the time.
inline constexpr int kMostListings = 20;

// A run as its names show it.
struct ReadRun {
  RunFolder folder;
  const RunLayout* layout = nullptr;  // Null if there is no checkpoint.
  std::vector<FoundEntry> entries;    // The newest first.
  // How many of `entries`, from the first on, are newer than the pointer says.
  size_t uncommitted = 0;
  // A pointer that names no checkpoint.
  std::vector<SkippedEntry> skipped;
};

// Lists a run. Fails as ListRun() does.
Result<ReadRun> ReadRunOf(std::string_view uri, const RunOptions& options);
// The same of a run that is listed.
Result<ReadRun> ReadRunIn(RunFolder folder, const RunOptions& options);

// Checks entry `row`: the entry, with the reason why it is not good. Fails if
// that cannot be said.
Result<RunEntry> CheckEntry(const ReadRun& run, size_t row,
                            const RunOptions& options);

}  // namespace haulway
