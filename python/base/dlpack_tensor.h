// Exports the library's memory as tensors to any consumer of DLPack.

#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <vector>

#include "haulway/buffer.h"
#include "haulway/dtype.h"

namespace haulway::python {

// Registers the type DlpackTensor, which has __dlpack__ and __dlpack_device__.
void BindDlpackTensor(nanobind::module_& module);

// Returns a DlpackTensor over `bytes`. A consumer's tensor keeps the bytes
// alive. Strides and offset count elements. Throws ValueError if the tensor
// ends past the bytes, and BufferError if DLPack has no such dtype.
nanobind::object MakeDlpackTensor(const Buffer& bytes, DType dtype,
                                  std::vector<int64_t> shape,
                                  std::vector<int64_t> strides, int64_t offset);

}  // namespace haulway::python
