// Hands the library's memory to NumPy and torch without a copy.

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

// Returns a Memory over the bytes. The Memory and every array over it keep them
// alive.
nanobind::object MakeMemory(Buffer bytes);

// A DlpackLender hands tensors, one after another, to a consumer of DLPack such
// as torch. It refills one capsule for all of them.
class DlpackLender {
 public:
  // `from_dlpack` is a function that takes a "dltensor" capsule.
  explicit DlpackLender(nanobind::object from_dlpack)
      : from_dlpack_(std::move(from_dlpack)) {}

  // Calls from_dlpack with the bytes as a dense, row-major tensor and returns
  // the result, or an invalid object if DLPack has no such dtype. The result
  // keeps the bytes alive and may release them without the GIL. Throws what
  // from_dlpack raises. Requires: the bytes are writable and not empty.
  nanobind::object Lend(Buffer bytes, DType dtype,
                        std::span<const int64_t> shape);

 private:
  const nanobind::object from_dlpack_;
  nanobind::object capsule_;  // Kept for reuse.
};

}  // namespace haulway::python
