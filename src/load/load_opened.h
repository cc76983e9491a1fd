// Loads storages from a source that is already open.

#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "haulway/checkpoint.h"
#include "haulway/load.h"
#include "haulway/status.h"
#include "load/choose_io.h"
#include "load/load_progress.h"

namespace haulway {

// Checks row numbers. Fails with kInvalidArgument for a row that does not
// exist, and with kTruncated for a storage that ends past the source.
Status CheckRows(const Checkpoint& checkpoint, std::span<const uint32_t> rows);

// Returns the source ranges of these rows' frames. Adjacent frames are merged.
std::vector<ByteRange> FrameRanges(const Checkpoint& checkpoint,
                                   std::span<const uint32_t> rows,
                                   const LoadOptions& options);

// Returns the source ranges of those frames that may be handed out as views.
// Empty if the caller allocates the memory.
std::vector<ByteRange> ViewRanges(const Checkpoint& checkpoint,
                                  std::span<const uint32_t> rows,
                                  const LoadOptions& options);

// Returns the sum of nbytes, or UINT64_MAX if the sum overflows.
uint64_t TensorBytes(const Checkpoint& checkpoint,
                     std::span<const uint32_t> rows);

// Returns the sum of the frame sizes, or UINT64_MAX if the sum overflows: the
// work of a load without views.
uint64_t FrameBytes(const Checkpoint& checkpoint,
                    std::span<const uint32_t> rows);

// Does what LoadStorages() does, from `opened`. Counts in `progress`, and sets
// its total from the plan if the total is not set yet. Requires: CheckRows()
// accepted the rows.
Result<std::vector<Buffer>> LoadOpened(const Checkpoint& checkpoint,
                                       const OpenedSource& opened,
                                       std::span<const uint32_t> rows,
                                       const LoadOptions& options,
                                       LoadProgress* progress);

}  // namespace haulway
