// Building many objects without the garbage collector.

#pragma once

#include <Python.h>

namespace haulway::python {

// A GcPause keeps the garbage collector from running as long as it lives: for
// building many objects, none of which is garbage. Requires: the GIL is held.
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
