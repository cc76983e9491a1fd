// File objects of Python as sources.

#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <memory>
#include <string>

#include "haulway/source.h"

namespace haulway::python {

// A source of `size` bytes that asks `reader`, an object of Python with
//   read(offset, view)    fills the writable memoryview, and
//   read_many(ranges)     does so for a list of such pairs,
// both from any thread. What they raise fails the read: ConnectionError with
// kUnavailable and TimeoutError with kTimeout, which are tried again, EOFError
// with kTruncated, all else with kIoError. `parallel` is how many reads in
// flight pay off. The GIL need not be held to read or to drop the source.
std::shared_ptr<const ByteSource> MakeFileObjectSource(nanobind::object reader,
                                                       uint64_t size,
                                                       std::string name,
                                                       int parallel);

}  // namespace haulway::python
