// Uses file objects of Python as sources.

#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <memory>
#include <string>

#include "haulway/source.h"

namespace haulway::python {

// Returns a source of `size` bytes that reads through `reader`, a Python object
// with
//   read(offset, view)    fills the writable memoryview, and
//   read_many(ranges)     does so for a list of such pairs.
// Both are called from any thread. Their exceptions fail the read:
// ConnectionError as kUnavailable and TimeoutError as kTimeout, which are
// retried, EOFError as kTruncated, and any other as kIoError. `parallel` is the
// number of concurrent reads that pays off. Reading and destroying the source
// do not require the GIL.
std::shared_ptr<const ByteSource> MakeFileObjectSource(nanobind::object reader,
                                                       uint64_t size,
                                                       std::string name,
                                                       int parallel);

}  // namespace haulway::python
