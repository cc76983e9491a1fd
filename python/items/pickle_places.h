// Finds where in an item its out-of-band buffers are placed.

#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace haulway::python {

// Returns for each buffer of a pickle, in order, whether it becomes part of an
// object, a set or a dict key, rather than only of lists, tuples and dict
// values. True if the walk cannot tell.
std::vector<bool> GoesIntoObjects(std::span<const std::byte> stream,
                                  size_t buffers);

}  // namespace haulway::python
