// The position of a walk in an object, for messages.

#pragma once

#include <Python.h>

#include <cstddef>
#include <string>
#include <vector>

namespace haulway::python {

// An ObjectPath is the path of keys and indexes from the root to the current
// object. Keys are borrowed; they stay alive while the walk is below them.
class ObjectPath {
 public:
  void Enter() { steps_.push_back({nullptr, 0}); }
  void Leave() { steps_.pop_back(); }
  // Set the position in the container entered last.
  void AtKey(PyObject* key) { steps_.back().key = key; }
  void AtIndex(size_t index) { steps_.back() = {nullptr, index}; }

  // Returns `object.optimizer["a key"][3]`. Keys that are not identifiers are
  // shown by repr(), shortened if long; this may run their code.
  std::string Show() const;

 private:
  struct Step {
    PyObject* key;
    size_t index;
  };
  std::vector<Step> steps_;
};

}  // namespace haulway::python
