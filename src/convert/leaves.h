// Finds the parts of a checkpoint's object that are not tensors.

#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "haulway/convert.h"
#include "haulway/index.h"
#include "haulway/status.h"
#include "haulway/tree.h"

namespace haulway::convert {

// A number, text or object, by its path.
struct OtherLeaf {
  std::string name;
  std::string why;
  // Only the key is none of text; what it leads to is converted.
  bool is_key = false;

  LeftOut left_out() const {
    return {is_key ? "the key of " + name : name, why};
  }
};

struct Leaves {
  std::vector<OtherLeaf> others;
  // Paths of tensors that consist of several tensors: sparse and nested ones.
  // Each as names have it with and without escaped dots.
  std::set<std::string, std::less<>> composed;
  // Class of each tensor that has its data in tensors below its name, "M.NAME",
  // by its path, as above.
  std::map<std::string, std::string, std::less<>> wrappers;
  // By row of tensors, the scheme and scales of each quantized one: a tuple.
  std::map<uint32_t, Value> quantizers;
  // Name and key of each tensor in the outermost dict whose name is not its
  // key. The key is text of the index.
  std::vector<std::pair<std::string, std::string_view>> keys;
};

// Walks index.root. Finds nothing if the object is a flat dict.
Leaves FindLeaves(const CheckpointIndex& index);

// Returns the composed tensor that entry `name` belongs to, or null.
const std::string* ComposedOf(const Leaves& leaves, std::string_view name);

// Fails with kUnsupported if the entry is part of a composed tensor, which no
// target format can store, or has its data in other tensors.
Status CheckWhole(const Leaves& leaves, std::string_view name);

// A tensor with the name that it has in every format: its unescaped key in the
// outermost dict, or its path in a nested object. The name is text of the
// index.
struct NamedTensor {
  std::string_view name;
  uint32_t tensor = 0;  // Row of index.tensors.
};
// Returns the named tensors in the order of the index.
std::vector<NamedTensor> NameTensors(const CheckpointIndex& index);

// Returns the row of the tensor with this name, or of the only tensor. Fails
// with kNotFound.
Result<uint32_t> RowOf(const CheckpointIndex& index, std::string_view name);

}  // namespace haulway::convert
