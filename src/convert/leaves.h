// What of the object in a checkpoint is no tensor.

#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "haulway/convert.h"
#include "haulway/index.h"
#include "haulway/status.h"

namespace haulway::convert {

struct Leaves {
  std::vector<LeftOut> others;  // Numbers, text, objects: by their path.
  // Paths of tensors that are made of several: sparse and nested ones.
  std::set<std::string, std::less<>> composed;
  // What a key of the outermost dict is, where its name spells it otherwise.
  std::vector<std::pair<std::string, std::string>> keys;
};

// Walks index.root; nothing is found where the object is a flat dict.
Leaves FindLeaves(const CheckpointIndex& index);

// Returns the composed tensor that entry `name` belongs to, or null.
const std::string* ComposedOf(const Leaves& leaves, std::string_view name);

// Fails with kUnsupported if the entry is a part of a composed tensor, which no
// format here can hold.
Status CheckWhole(const Leaves& leaves, std::string_view name);

// A tensor by the name that it has in every format: its key in the outermost
// dict as it is, its path in a nested object.
struct NamedTensor {
  std::string name;
  uint32_t tensor = 0;  // Row of index.tensors.
};
// In the order of the index.
std::vector<NamedTensor> NameTensors(const CheckpointIndex& index);

// The row of the tensor of that name, or of the only one there is. Fails with
// kNotFound.
Result<uint32_t> RowOf(const CheckpointIndex& index, std::string_view name);

}  // namespace haulway::convert
