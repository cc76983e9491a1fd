// The dtype strings of tensorizer files: NumPy's type strings, and NumPy's
// void with PyTorch's name for what NumPy lacks (spec 2.8).

#pragma once

#include <string>
#include <string_view>

#include "haulway/dtype.h"
#include "haulway/status.h"

namespace haulway::tensorizer {

struct DTypeSpelling {
  DType dtype;
  bool opaque = false;  // Spelled as void with a name; version 2 and later.
};

// Rule I06: kCorrupt for what no writer writes, kUnsupported for a type that
// Haulway does not know.
Result<DTypeSpelling> ParseDType(std::string_view text);

// As the released writers spell it; kUnsupported for the quantized types,
// which they refuse.
Result<std::string> EncodeDType(DType dtype);
bool IsOpaque(DType dtype);

}  // namespace haulway::tensorizer
