// Opens the files that the processes of a training wrote with torch.save(), of
// DTensors or ShardedTensors, as one checkpoint.

#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "haulway/format.h"
#include "haulway/options.h"
#include "haulway/source.h"
#include "haulway/status.h"
#include "haulway/verify.h"

namespace haulway::ranks {

// The files of one state, by the rank of their process.
struct RankSet {
  std::string part;
  std::vector<std::string> files;  // "" for a file that is missing.
  std::string missing;             // The first one; "" if all are there.
};

// Returns the files of the state `part` among those of a folder; if it is
// empty, of the model, or of the only state. Fails with kNotFound if there are
// none, and with kMismatch, with the file, if one is missing (unless reading
// leniently), or of another number of processes.
Result<RankSet> ChooseRanks(std::span<const std::string> names,
                            std::string_view part, Strictness strictness);

// Opens the files that `list` names (rank_list.h), its neighbours. Leniently, a
// file may be missing: then reading a tensor that the others do not hold whole
// fails with kMismatch and the name of that file. Fails with
// kMismatch if they contradict one another; with kCorrupt if one contradicts
// itself, or elements are missing; with kUnsupported for a tensor that has no
// value; with kUnsafe for anything that only code could make.
Result<std::unique_ptr<const FormatReader>> OpenRanks(
    std::shared_ptr<const ByteSource> list, const OpenOptions& options);

// Checks the checksums of all files in the list, and reads the tensors of the
// state of which there are replicas, to compare these.
Result<VerifyReport> VerifyRanks(std::shared_ptr<const ByteSource> list,
                                 const VerifyOptions& options);

}  // namespace haulway::ranks
