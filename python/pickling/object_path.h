// Where in an object a walk is, for messages.

#pragma once

#include <Python.h>

#include <cstddef>
#include <string>
#include <vector>

namespace haulway::python {

// An ObjectPath is the way from the root to what is being walked: keys and
// indexes. Keys are borrowed, and alive while the walk is below them.
class ObjectPath {
 public:
  void Enter() { steps_.push_back({nullptr, 0}); }
  void Leave() { steps_.pop_back(); }
  // Say where in the container last entered.
  void AtKey(PyObject* key) { steps_.back().key = key; }
  void AtIndex(size_t index) { steps_.back() = {nullptr, index}; }

  // `object.optimizer["a key"][3]`. Keys that are no names are shown as
  // repr() shows them, cut if they are long; may run their code.
  std::string Show() const;

 private:
  struct Step {
    PyObject* key;
    size_t index;
  };
  std::vector<Step> steps_;
};

}  // namespace haulway::python
