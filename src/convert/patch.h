// Computes the change that turns an existing file into that of a layout.

#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "haulway/layout.h"
#include "haulway/source.h"
#include "haulway/status.h"

namespace haulway::convert {

// A disk writes a sector whole or not at all.
inline constexpr uint64_t kSectorBytes = 512;

// The bytes from the first to the last difference.
struct Patch {
  uint64_t offset = 0;
  std::vector<std::byte> bytes;   // Empty if nothing differs.
  std::vector<std::byte> before;  // The current bytes.

  // Returns whether the patch lies in one sector. Such a write is
  // atomic even if the process ends or power fails. A larger one may be
  // partial, and half a header of one file and half of another are neither.
  bool is_atomic() const;
};

// Returns what to write to `file` to turn it into the file of `layout`. Nullopt
// unless every payload stays at its place, and the differences lie in one
// frame.
Result<std::optional<Patch>> PatchOf(const Layout& layout,
                                     const ByteSource& file);

}  // namespace haulway::convert
