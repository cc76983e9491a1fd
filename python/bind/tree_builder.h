// From a checkpoint's value tree to Python objects.

#pragma once

#include <nanobind/nanobind.h>

#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/memory.h"
#include "haulway/buffer.h"
#include "haulway/checkpoint.h"

namespace haulway::python {

// A TreeBuilder makes the plain data of a tree itself and asks a factory, a
// Python object, for everything else:
//
//   tensor(row)                    a tensor, by its row
//   view(base, row)                a tensor over a storage that exists
//   storage(base, row)             a storage in its own right
//   name(module, name)             what a global stands for
//   construct(module, name, args, kwargs, is_new)
//   opaque(module, name, byte, args, kwargs)   what only code could make
//   set_state(object, module, name, state)
//   extend(object, appended, items)
//   set_attributes(mapping, state)
//
// With `from_dlpack` (torch's), dense tensors that are all of their storage
// are made without asking, and view() is asked for the others. Where the
// factory has an attribute `arrays` that is not None, dense tensors become
// NumPy arrays without asking; it is a tuple (numpy.ndarray, a function from a
// name to a dtype, a list of Memory objects parallel to storages).
//
// Where the checkpoint holds something opaque, nothing is built unless the
// factory has a true attribute `keeps_opaque`, and opaque().
//
// Shared references stay shared: what is one object in the file becomes one.
class TreeBuilder {
 public:
  struct Options {
    // Parallel to storages; empty if the factory makes every tensor.
    std::vector<Buffer> buffers;
    nanobind::object from_dlpack;  // None if the factory makes every tensor.
    // Storage objects the caller already has, parallel to storages, or None.
    nanobind::object bases;
    std::string encoding = "utf-8";  // Python 2 strings; "bytes" keeps them.
  };

  TreeBuilder(const Checkpoint& checkpoint, nanobind::object factory,
              Options options);

  // Throws what the factory throws, or why the object cannot be made.
  nanobind::object Build(const Value& value);
  // The whole object: of the index's root, or a dict of its entries.
  nanobind::object BuildWhole();

 private:
  nanobind::object Remember(const Value& value, nanobind::object object);
  nanobind::object BuildSequence(const Value& value);
  nanobind::object BuildMapping(const Value& value);
  nanobind::object BuildObject(const Value& value);
  nanobind::object BuildTensor(uint32_t row);
  nanobind::object Base(uint32_t storage);
  nanobind::object BuildArray(const TensorInfo& tensor);
  nanobind::object Raw(std::string_view text) const;

  const CheckpointIndex& index_;
  const nanobind::object factory_;
  Options options_;
  DlpackLender lender_;
  nanobind::object array_type_;  // No object, or with the next two.
  nanobind::object dtype_named_;
  nanobind::object memories_;
  std::map<DType, nanobind::object> dtypes_;  // That were asked for.
  nanobind::object counter_;
  nanobind::object ordered_dict_;
  // One object in the file is one object here.
  std::unordered_map<const void*, nanobind::object> built_;
  // A torch tensor, or what `bases` holds, over each storage.
  std::vector<nanobind::object> bases_;
};

// Throws UnsafeError, with the remedy, if only code could make the object.
void CheckObject(const Checkpoint& checkpoint);

}  // namespace haulway::python
