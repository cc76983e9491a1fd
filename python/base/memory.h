// Memory of the library, handed to NumPy and torch without a copy.

#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <span>
#include <utility>

#include "haulway/buffer.h"
#include "haulway/dtype.h"

namespace haulway::python {

// Registers the type Memory: bytes with the buffer protocol.
void BindMemory(nanobind::module_& module);

// A Memory over the bytes; it, and every array over it, keeps them alive.
nanobind::object MakeMemory(Buffer bytes);

// A DlpackLender hands memory to a consumer of DLPack, such as torch's, one
// tensor after another, in one capsule that it fills anew each time.
class DlpackLender {
 public:
  // `from_dlpack` is a function of a "dltensor" capsule.
  explicit DlpackLender(nanobind::object from_dlpack)
      : from_dlpack_(std::move(from_dlpack)) {}

  // What from_dlpack makes of the bytes, dense and in row-major order; no
  // object if DLPack has no such dtype. That keeps the bytes alive, and may
  // let go of them without the GIL. Throws what from_dlpack raises. Requires:
  // the bytes are writable and not empty.
  nanobind::object Lend(Buffer bytes, DType dtype,
                        std::span<const int64_t> shape);

 private:
  const nanobind::object from_dlpack_;
  nanobind::object capsule_;  // Taken, as the consumer left it.
};

}  // namespace haulway::python
