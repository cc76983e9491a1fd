// Applies the frame of a version to the bytes of a tensor.

#pragma once

#include <cstddef>
#include <span>

#include "delta/checksum.h"
#include "delta/version_facts.h"
#include "haulway/status.h"

namespace haulway::delta {

// Changes `tensor`, the whole bytes of a tensor of the older version, to those
// of the newer one, and adds the new bytes to `checksum` unless it is null.
// Takes little memory whatever the frame says. Fails with kCorrupt or
// kTruncated if the frame does not fit the tensor, and as FrameReader does; the
// bytes are unspecified then.
Status ApplyChange(Change change, std::span<const std::byte> frame,
                   std::span<std::byte> tensor, Checksum* checksum);

}  // namespace haulway::delta
