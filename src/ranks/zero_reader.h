// Opens a checkpoint of DeepSpeed's ZeRO, whose processes hold slices of flat
// vectors of parameters.

#pragma once

#include <memory>

#include "haulway/format.h"
#include "haulway/options.h"
#include "haulway/source.h"
#include "haulway/status.h"
#include "haulway/verify.h"

namespace haulway::ranks {

// Opens the files that `list` names (rank_list.h), its neighbours: the 32-bit
// weights of the optimizer, or the model's own, or with part "optim" the state
// of the optimizer. Fails with kUnsupported for checkpoints of pipeline, expert
// or tensor parallelism; with kMismatch if a file is missing or surplus; with
// kCorrupt if the parameters do not fill the vectors.
Result<std::unique_ptr<const FormatReader>> OpenZero(
    std::shared_ptr<const ByteSource> list, const OpenOptions& options);

// Checks the checksums of all files in the list, and opens the checkpoint.
Result<VerifyReport> VerifyZero(std::shared_ptr<const ByteSource> list,
                                const VerifyOptions& options);

}  // namespace haulway::ranks
