// What makes the file of a layout of a file that is there.

#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "haulway/layout.h"
#include "haulway/source.h"
#include "haulway/status.h"

namespace haulway::convert {

// Bytes that differ, from the first to the last one.
struct Patch {
  uint64_t offset = 0;
  std::vector<std::byte> bytes;   // Empty if nothing differs.
  std::vector<std::byte> before;  // What is there now.

  // Whether all of it lies in one sector of 512 bytes. One write of that is
  // whole or not there at all, whenever the process ends or power is lost; of
  // more, some sectors may be there without others, and a header that is half
  // of one file and half of another is neither.
  bool is_atomic() const;
};

// What to write over `file` to have the file of `layout`: nullopt unless every
// payload stays where it is, and what differs lies in one frame.
Result<std::optional<Patch>> PatchOf(const Layout& layout,
                                     const ByteSource& file);

}  // namespace haulway::convert
