// Makes the frame that turns the bytes of a tensor into new ones.

#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "delta/version_facts.h"
#include "haulway/status.h"

namespace haulway::delta {

// Returns one zstd frame, which states the size of its content, for the change
// from `before` to `after`. ApplyChange() and every receiver that is known
// takes it. Needs memory for the content of the frame, and 16 bytes for each
// run of changed bytes. Requires: both have the same size, above 0. Fails with
// kUnsupported if a tensor is too large for its positions, and with kLimit if
// there is no memory.
Result<std::vector<std::byte>> MakeChange(Change change,
                                          std::span<const std::byte> before,
                                          std::span<const std::byte> after);

}  // namespace haulway::delta
