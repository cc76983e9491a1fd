// Loading from a source that was chosen and opened already.

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

// kInvalidArgument for a row that is not there, kTruncated for one that ends
// past the source.
Status CheckRows(const Checkpoint& checkpoint, std::span<const uint32_t> rows);

// The frames of these rows, neighbours as one.
std::vector<ByteRange> FrameRanges(const Checkpoint& checkpoint,
                                   std::span<const uint32_t> rows,
                                   const LoadOptions& options);

// The frames of those of these rows that may be handed out where the source has
// them; none if the caller makes the memory.
std::vector<ByteRange> ViewRanges(const Checkpoint& checkpoint,
                                  std::span<const uint32_t> rows,
                                  const LoadOptions& options);

// The sum of nbytes, or UINT64_MAX if that is more.
uint64_t TensorBytes(const Checkpoint& checkpoint,
                     std::span<const uint32_t> rows);

// What is to be done for rows of which none is a view.
uint64_t FrameBytes(const Checkpoint& checkpoint,
                    std::span<const uint32_t> rows);

// LoadStorages() from `opened`. Counts in `progress`, whose total is that of
// the plan if it has none yet. Requires: the rows were checked.
Result<std::vector<Buffer>> LoadOpened(const Checkpoint& checkpoint,
                                       const OpenedSource& opened,
                                       std::span<const uint32_t> rows,
                                       const LoadOptions& options,
                                       LoadProgress* progress);

}  // namespace haulway
