// Memory of the library, handed to NumPy and torch without a copy.

#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <span>

#include "haulway/buffer.h"
#include "haulway/dtype.h"

namespace haulway::python {

// Registers the type Memory: bytes with the buffer protocol.
void BindMemory(nanobind::module_& module);

// A Memory over the bytes; it, and every array over it, keeps them alive.
nanobind::object MakeMemory(Buffer bytes);

// A "dltensor" capsule of one dimension or more over the bytes, dense and in
// row-major order; nullptr without an exception if DLPack has no such dtype.
// Whoever takes the capsule keeps the bytes alive, and may let go of them
// without the GIL. Requires: the bytes are writable and not empty.
PyObject* MakeDlpackCapsule(Buffer bytes, DType dtype,
                            std::span<const int64_t> shape);

}  // namespace haulway::python
