// Inflates part of a deflated payload in bounded memory. libdeflate is faster,
// but cannot stop before the end.

#pragma once

#include <cstddef>
#include <span>

#include "haulway/status.h"

namespace haulway::zip {

// Inflates the start of a payload into `out`. `deflated` is the start of the
// compressed bytes. Returns the number of bytes, which is less than out.size()
// if `deflated` has no more. Fails with kCorrupt if it is not deflate data.
Result<size_t> InflateStart(std::span<const std::byte> deflated,
                            std::span<std::byte> out);

// Inflates a whole payload that begins with `head`, and stores the rest in
// `out`. Fails with kCorrupt if it begins otherwise, or has another length.
Status InflateAfter(std::span<const std::byte> head,
                    std::span<const std::byte> deflated,
                    std::span<std::byte> out);

}  // namespace haulway::zip
