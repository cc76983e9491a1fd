// The types of ggml's tensors, and how GGUF numbers them.

#pragma once

#include <cstdint>
#include <optional>

#include "haulway/dtype.h"

namespace haulway::gguf {

// Nullopt for a number that is not given, or was taken back.
std::optional<DType> TypeOf(uint32_t id);
// Nullopt for a type that the format lacks.
std::optional<uint32_t> IdOf(DType dtype);

}  // namespace haulway::gguf
