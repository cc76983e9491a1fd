// Reads the memory layout of a NumPy array without NumPy's headers.

#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "haulway/dtype.h"

namespace haulway::python {

// The memory that an array views, and its layout.
struct ArrayFacts {
  // The dtype of the tensor that the array is saved as.
  const DTypeInfo* type = nullptr;
  nanobind::object owner;  // Keeps the memory alive; the same object for all
                           // views of it.
  const std::byte* memory = nullptr;
  uint64_t memory_bytes = 0;
  int64_t offset = 0;  // In elements.
  std::vector<int64_t> shape;
  std::vector<int64_t> strides;  // In elements, never negative.
};

enum class ArrayKind { kArray, kScalar, kNeither };

class ArrayNames {
 public:
  // If NumPy is not imported, nothing is an array.
  ArrayNames();

  ArrayKind KindOf(PyObject* object) const;

  // Reads the facts of an array. An array that no tensor can view
  // (byte-swapped, negative strides, strides that are no multiple of the item
  // size) is copied first. Returns false without an error set if no tensor
  // dtype has such elements, and with an error set if the read fails.
  bool Read(PyObject* array, ArrayFacts* facts) const;

 private:
  nanobind::object array_, memmap_, generic_;
};

// Returns the name of the dtype for messages, e.g. "float32".
std::string NameOfDType(PyObject* array);

}  // namespace haulway::python
