// Where in an item its out-of-band buffers end up.

#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace haulway::python {

// For each buffer of a pickle, in order: whether it goes into an object, a
// set, or the key of a dict, and not just into lists, tuples and dicts. Where
// it cannot be told, it is taken to.
std::vector<bool> GoesIntoObjects(std::span<const std::byte> stream,
                                  size_t buffers);

}  // namespace haulway::python
