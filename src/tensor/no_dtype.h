// The refusal of a format that cannot store elements of a dtype.

#pragma once

#include <fmt/format.h>

#include <string_view>

#include "haulway/dtype.h"
#include "haulway/status.h"

namespace haulway {

// Returns "FORMAT has no dtype X: ", and what the caller can do.
inline Status NoDType(std::string_view format, DType dtype) {
  std::string_view remedy = "leave the tensor out";
  if (Describe(dtype).kind == DTypeKind::kBlocks) {
    remedy =
        "only GGUF files hold such blocks: write one, dequantize the model "
        "(the "
        "option dequantize, which load and convert have), or leave the tensor "
        "out";
  } else if (Describe(dtype).kind == DTypeKind::kFloat) {
    remedy = "cast it to F32, or leave the tensor out";
  }
  return Status(Code::kUnsupported, fmt::format("{} has no dtype {}: {}",
                                                format, Name(dtype), remedy));
}

}  // namespace haulway
