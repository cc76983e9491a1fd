// Ranges of a source in another order.

#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "haulway/source.h"
#include "haulway/status.h"

namespace haulway::delta {

// Bytes of the parent that appear at `begin`.
struct Splice {
  uint64_t begin = 0;
  uint64_t length = 0;
  uint64_t from = 0;  // Offset in the parent.
};

// Makes a source of ranges of `parent`, read in the same way. Bytes between the
// ranges are zeros. Requires: the splices are sorted, do not overlap, and lie
// within the parent.
std::shared_ptr<const ByteSource> SpliceSource(
    std::shared_ptr<const ByteSource> parent, std::vector<Splice> splices,
    std::string name);

}  // namespace haulway::delta
