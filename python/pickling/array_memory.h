// The memory of a NumPy array, read without NumPy's headers.

#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "haulway/dtype.h"

namespace haulway::python {

// What an array is a view of, and how.
struct ArrayFacts {
  // The type of the tensor as which the array is saved.
  const DTypeInfo* type = nullptr;
  nanobind::object owner;  // What keeps the memory: one for all its views.
  const std::byte* memory = nullptr;
  uint64_t memory_bytes = 0;
  int64_t offset = 0;  // In elements.
  std::vector<int64_t> shape;
  std::vector<int64_t> strides;  // In elements, none negative.
};

enum class ArrayKind { kArray, kScalar, kNeither };

class ArrayNames {
 public:
  // Knows no array unless NumPy is imported.
  ArrayNames();

  ArrayKind KindOf(PyObject* object) const;

  // Reads what an array is. What a tensor cannot view (swapped bytes, negative
  // strides or odd ones) is copied first. Returns false with no error set if
  // no tensor has such elements, else with one.
  bool Read(PyObject* array, ArrayFacts* facts) const;

 private:
  nanobind::object array_, memmap_, generic_;
};

// "float32", for messages.
std::string NameOfDType(PyObject* array);

}  // namespace haulway::python
