// Pauses the garbage collector while many objects are built.

#pragma once

#include <Python.h>

namespace haulway::python {

// A GcPause disables the garbage collector during its lifetime. Use it where
// many objects are built and none of them becomes garbage. Requires: the GIL is
// held.
class GcPause {
 public:
  GcPause() : was_enabled_(PyGC_Disable()) {}
  GcPause(const GcPause&) = delete;
  GcPause& operator=(const GcPause&) = delete;
  ~GcPause() {
    if (was_enabled_ != 0) PyGC_Enable();
  }

 private:
  const int was_enabled_;
};

}  // namespace haulway::python
