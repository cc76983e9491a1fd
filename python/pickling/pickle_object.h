// A Python object as the pickle torch.save writes of it, and the memory that
// the pickle names by number.

#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <string>
#include <unordered_set>
#include <vector>

#include "haulway/buffer.h"

namespace haulway::python {

// One record of tensor bytes. Its key is its number, "0", "1", ..., and in the
// legacy container `legacy_key`.
struct PickledStorage {
  nanobind::object owner;  // What keeps the bytes alive: a storage, an array.
  nanobind::object location;  // A str, "cpu" for memory of this process.
  const std::byte* data;      // Null if the bytes are elsewhere, or are none.
  uint64_t nbytes;
  uint64_t item_bytes = 1;  // Element size of the storage's first mention.
  uint64_t legacy_key = 0;  // Where torch keeps the storage in memory.
};

// Hold the GIL to destroy it.
struct PickledObject {
  std::string pickle;
  std::vector<PickledStorage> storages;
  std::vector<Buffer> copies = {};  // Parallel to storages once copied.
};

struct PickleObjectOptions {
  // Names, "module.name", of globals that are data beside those that always
  // are. None of sys, os, posix and nt.
  std::unordered_set<std::string> also_data;
  // Write NumPy arrays as the tensors they correspond to, and NumPy scalars
  // as numbers. Else they are objects like any other, which torch.load does
  // not take for data.
  bool arrays_as_tensors = false;
  // Leave out the bytes of storages that no tensor uses: views that share no
  // bytes get storages of their own, and one with holes is written without.
  // The object is walked twice. Storages that stand in the object themselves,
  // or in what torch reduces in a way of its own, stay whole.
  bool compact = false;
  // 2 to 5; 2 with arrays_as_tensors.
  int protocol = 2;
  // Mention storages as the container of torch 1.5 and before has them.
  bool legacy = false;
  uint32_t max_depth = 1000;
};

// The bytes that torch.save would put in data.pkl, for every object that is
// data. Requires: the GIL is held. Calls the reductions of objects, and
// nothing else of them.
//
// Throws the Python exception for
//   kUnsafe       what is not data, with the path to it,
//   kLimit        nesting deeper than max_depth,
//   kUnsupported  what torch.save cannot write either,
// and what reductions raise.
PickledObject PickleObject(nanobind::handle object,
                           const PickleObjectOptions& options);

// Adds pickle_object() and PickledObject to the module.
void BindPickleObject(nanobind::module_& module);

}  // namespace haulway::python
