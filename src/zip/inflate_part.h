// Inflating part of a deflated payload, in bounded memory: libdeflate, which is
// faster, cannot stop before the end.

#pragma once

#include <cstddef>
#include <span>

#include "haulway/status.h"

namespace haulway::zip {

// Inflates the start of a payload, of which `deflated` is the start, into
// `out`; returns how many bytes came, fewer than wanted if `deflated` holds no
// more. Fails with kCorrupt if it is not deflated at all.
Result<size_t> InflateStart(std::span<const std::byte> deflated,
                            std::span<std::byte> out);

// Inflates a whole payload that begins with `head` into `out`, without it.
// Fails with kCorrupt if it begins otherwise, or ends sooner or later.
Status InflateAfter(std::span<const std::byte> head,
                    std::span<const std::byte> deflated,
                    std::span<std::byte> out);

}  // namespace haulway::zip
