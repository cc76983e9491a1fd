// Dequantizes the blocks of ggml's types.
//
// The layouts, and the order of operations, which decides the last bit, are
// those of the package gguf (gguf.quants.dequantize). Every operation rounds to
// float32.

#pragma once

#include <cstddef>
#include <cstdint>

#include "haulway/dtype.h"

namespace haulway::arithmetic {

// Dequantizes `count` blocks to block_elements float32 numbers each; see
// DTypeInfo for the sizes of a block. Neither side needs to be aligned to more
// than its items.
using BlocksFunction = void (*)(const std::byte* blocks, uint64_t count,
                                float* out);

// Returns the function for a dtype of ggml, F16 and BF16 included, whose blocks
// are one number; null if there is none.
BlocksFunction BlocksFunctionOf(DType dtype);

}  // namespace haulway::arithmetic
