// Builds Python objects from a checkpoint's value tree.

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

// Returns whether the last index varies fastest and there are no gaps.
bool IsRowMajor(const TensorInfo& tensor);

// A TreeBuilder makes the plain data of a tree itself. For everything else it
// calls a factory, a Python object:
//
//   tensor(row)                    a tensor, by its row
//   view(base, row)                a tensor over an existing storage
//   storage(base, row)             a storage object
//   name(module, name)             the object that a global stands for
//   construct(module, name, args, kwargs, is_new)
//   opaque(module, name, byte, args, kwargs)   an object only code could make
//   set_state(object, module, name, state)
//   extend(object, appended, items)
//   set_attributes(mapping, state)
//
// With `from_dlpack` (torch's), dense tensors that cover their whole storage
// are made without the factory; for others view() is called. If the factory's
// attribute `arrays` is not None, dense tensors become NumPy arrays without a
// call; it is a tuple (numpy.ndarray, a function from a name to a dtype, a list
// of Memory objects parallel to storages).
//
// If the checkpoint holds an opaque object, nothing is built unless the factory
// has a true attribute `keeps_opaque`, and opaque().
//
// Sharing is preserved: one object in the file becomes one Python object.
class TreeBuilder {
 public:
  struct Options {
    // Parallel to storages; empty if the factory makes every tensor.
    std::vector<Buffer> buffers;
    nanobind::object from_dlpack;  // None if the factory makes every tensor.
    // Storage objects that the caller already has, parallel to storages, or
    // None.
    nanobind::object bases;
    std::string encoding = "utf-8";  // For Python 2 strings; "bytes" does not
                                     // decode.
  };

  TreeBuilder(const Checkpoint& checkpoint, nanobind::object factory,
              Options options);

  // Throws the factory's exception, or an Error if the object cannot be made.
  nanobind::object Build(const Value& value);
  // Builds the index's root object, or a dict of its entries.
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
  nanobind::object array_type_;  // All three or none are set.
  nanobind::object dtype_named_;
  nanobind::object memories_;
  std::map<DType, nanobind::object> dtypes_;  // Dtypes used so far.
  nanobind::object counter_;
  nanobind::object ordered_dict_;
  // Python object by identity in the file, so that sharing is preserved.
  std::unordered_map<const void*, nanobind::object> built_;
  // The base of each storage: a torch tensor, or the item of `bases`.
  std::vector<nanobind::object> bases_;
};

// Throws UnsafeError, with the remedy, if only code could make the object.
void CheckObject(const Checkpoint& checkpoint);

}  // namespace haulway::python
