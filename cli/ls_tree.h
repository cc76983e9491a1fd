// Lists the tensors of a checkpoint by module. A name's parts are separated by
// dots.

#pragma once

#include <string>
#include <vector>

#include "haulway/index.h"
#include "output.h"

namespace haulway::cli {

// Prints modules and tensors down to `depth` parts of a name, each module with
// the number and total size of its tensors. Numbers in names are sorted
// numerically.
void PrintTree(const CheckpointIndex& index, const std::vector<Entry>& entries,
               int depth, bool exact_sizes);

// Adds "modules": [{name, tensors, nbytes}] for all modules; "" is the whole
// checkpoint.
void AddModules(const CheckpointIndex& index, const std::vector<Entry>& entries,
                int depth, Json* json);

// Orders "layer.2" before "layer.10".
bool NaturalLess(std::string_view a, std::string_view b);

}  // namespace haulway::cli
