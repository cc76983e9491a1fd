// Memory of a publication, as what loading fills.

#pragma once

#include "haulway/publish.h"

namespace haulway::python {

// In the options of loading, it makes the engine allocate from the publisher.
struct VersionMemory {
  Publisher* publisher;  // Outlives it.
};

}  // namespace haulway::python
