// The tensor types of ggml, and their numbers in GGUF.

#pragma once

#include <cstdint>
#include <optional>

#include "haulway/dtype.h"

namespace haulway::gguf {

// Returns the dtype; nullopt for a number that is unassigned or was withdrawn.
std::optional<DType> TypeOf(uint32_t id);
// Returns the number; nullopt for a type that the format lacks.
std::optional<uint32_t> IdOf(DType dtype);

}  // namespace haulway::gguf
