// The dtype strings of tensorizer files: NumPy's type strings, and for types
// that NumPy lacks, NumPy's void with PyTorch's name.

#pragma once

#include <string>
#include <string_view>

#include "haulway/dtype.h"
#include "haulway/status.h"

namespace haulway::tensorizer {

struct DTypeSpelling {
  DType dtype;
  bool opaque = false;  // Written as void with a name; since version 2.
};

// Parses a dtype by rule I06. Fails with kCorrupt for text that no writer
// writes, and with kUnsupported for a type that Haulway does not know.
Result<DTypeSpelling> ParseDType(std::string_view text);

// Returns the text that the released writers write. Fails with kUnsupported for
// the quantized types, which these writers refuse.
Result<std::string> EncodeDType(DType dtype);
bool IsOpaque(DType dtype);

}  // namespace haulway::tensorizer
