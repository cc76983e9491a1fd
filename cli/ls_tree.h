// The tensors of a checkpoint by module: the parts of their names between dots.

#pragma once

#include <string>
#include <vector>

#include "haulway/index.h"
#include "output.h"

namespace haulway::cli {

// Prints modules and tensors down to `depth` parts of a name, each module with
// the number of its tensors and their bytes. Numbers come in their order.
void PrintTree(const CheckpointIndex& index, const std::vector<Entry>& entries,
               int depth, bool exact_sizes);

// Adds "modules": [{name, tensors, nbytes}] of all of them, "" for the whole.
void AddModules(const CheckpointIndex& index, const std::vector<Entry>& entries,
                int depth, Json* json);

// Orders "layer.2" before "layer.10".
bool NaturalLess(std::string_view a, std::string_view b);

}  // namespace haulway::cli
