// What of the object in a checkpoint is no tensor.

#pragma once

#include <set>
#include <string>
#include <vector>

#include "haulway/convert.h"
#include "haulway/index.h"

namespace haulway::convert {

struct Leaves {
  std::vector<LeftOut> others;  // Numbers, text, objects: by their path.
  // Paths of tensors that are made of several: sparse and nested ones.
  std::set<std::string> composed;
  // What a key of the outermost dict is, where its name spells it otherwise.
  std::vector<std::pair<std::string, std::string>> keys;
};

// Walks index.root; nothing is found where the object is a flat dict.
Leaves FindLeaves(const CheckpointIndex& index);

}  // namespace haulway::convert
