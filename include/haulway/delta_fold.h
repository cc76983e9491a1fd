// Joins versions of weights: several deltas into one, or a chain into a full
// version.

#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>

#include "haulway/delta.h"
#include "haulway/open.h"
#include "haulway/sink.h"
#include "haulway/status.h"

namespace haulway {

struct JoinVersionsOptions {
  // `base`: the checkpoint before the first version; for CompactVersion().
  SourceOptions source;
  // Most bytes of tensors in a shard; 0: one shard. For CompactVersion().
  uint64_t shard_bytes = 0;
  int threads = 0;  // 0: as many as this process may use.
  // Only for a local folder: whether it survives a loss of power.
  Durability durability = Durability::kFull;
  const std::atomic<bool>* cancel = nullptr;  // Set to true to stop.
};

// Joins the deltas of the run in `uri` that lead from version `start` to
// version `to`, by number or id, into one delta on `start`, in the folder
// `out`, which must not exist. It changes the tensors as the deltas do one
// after the other, and has the last one's checksums. Needs no base; memory is
// that of the largest tensor for each thread, and the frames. Fails with
// kUnsupported if the deltas have several encodings or checksums, or if a full
// version is among them; with kNotFound if a version is not there; and as
// reading and writing do. Then nothing is there.
HAULWAY_EXPORT Result<WeightVersion> FoldVersions(
    std::string_view uri, std::string_view out, std::string_view start,
    std::string_view to, const JoinVersionsOptions& options = {});

// Writes version `version` of the run in `uri`, by number or id, or the newest
// complete one if that is empty, as a full version to the folder `out`, which
// must not exist. Fails as opening the version and writing do. Then nothing is
// there.
HAULWAY_EXPORT Result<WeightVersion> CompactVersion(
    std::string_view uri, std::string_view out, std::string_view version,
    const JoinVersionsOptions& options = {});

}  // namespace haulway
