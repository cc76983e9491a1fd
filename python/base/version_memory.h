// Memory of a publication as the destination of a load.

#pragma once

#include "haulway/publish.h"

namespace haulway::python {

// If set in the load options, the engine allocates from the publisher.
struct VersionMemory {
  Publisher* publisher;  // Must outlive this.
};

}  // namespace haulway::python
