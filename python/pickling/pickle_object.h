// Pickles a Python object as torch.save does, and lists the memory that the
// pickle refers to by number.

#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <string>
#include <unordered_set>
#include <vector>

#include "haulway/buffer.h"

namespace haulway::python {

// One record of tensor bytes. Its key is its number, "0", "1", ...; in the
// legacy container, `legacy_key`.
struct PickledStorage {
  nanobind::object owner;     // Keeps the bytes alive: a storage or an array.
  nanobind::object location;  // A str, e.g. "cpu".
  const std::byte* data;  // Null if the bytes are elsewhere or there are none.
  uint64_t nbytes;
  uint64_t item_bytes = 1;  // Element size at the storage's first mention.
  uint64_t legacy_key = 0;  // Address of torch's StorageImpl.
};

// Destroy it with the GIL held.
struct PickledObject {
  std::string pickle;
  std::vector<PickledStorage> storages;
  std::vector<Buffer> copies = {};  // Parallel to storages after snapshot().
};

struct PickleObjectOptions {
  // Names, "module.name", of globals to accept as data in addition to the
  // built-in list. Names of sys, os, posix and nt are never accepted.
  std::unordered_set<std::string> also_data;
  // Writes NumPy arrays as the tensors they correspond to, and NumPy scalars as
  // numbers. Otherwise they are ordinary objects, which torch.load does not
  // accept as data.
  bool arrays_as_tensors = false;
  // Leaves out the bytes of storages that no tensor uses: views that share no
  // byte get separate storages, and a view with holes is written without them.
  // The object is walked twice. A storage that appears in the object itself, or
  // in an object with a special reduction in torch, stays whole.
  bool compact = false;
  // 2 to 5; 2 with arrays_as_tensors.
  int protocol = 2;
  // Writes storages as the container of torch 1.5 and before does.
  bool legacy = false;
  uint32_t max_depth = 1000;
};

// Returns the bytes that torch.save would write to data.pkl, for every object
// that is data. Runs no code of the objects except their reductions. Requires:
// the GIL is held.
//
// Throws the Python exception for
//   kUnsafe       an object that is not data, with the path to it,
//   kLimit        nesting deeper than max_depth,
//   kUnsupported  an object that torch.save cannot write either,
// and the exceptions of reductions.
PickledObject PickleObject(nanobind::handle object,
                           const PickleObjectOptions& options);

// Adds pickle_object() and PickledObject to the module.
void BindPickleObject(nanobind::module_& module);

}  // namespace haulway::python
