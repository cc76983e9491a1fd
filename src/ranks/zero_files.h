// Sorts the files of a checkpoint of DeepSpeed's ZeRO by their names.

#pragma once

#include <string>
#include <vector>

#include "haulway/status.h"

namespace haulway::ranks {

// The names of the files, by rank.
struct ZeroFiles {
  std::vector<std::string> models;  // One, or at stage 3 one for each process.
  std::vector<std::string> optimizers;
  bool is_stage3 = false;
};

// Fails with kUnsupported for a file of pipeline, expert or tensor parallelism,
// and with kMismatch if a rank's file is missing, or stages are mixed.
Result<ZeroFiles> FindZeroFiles(const std::vector<std::string>& names);

}  // namespace haulway::ranks
