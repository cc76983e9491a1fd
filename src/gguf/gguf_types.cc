#include "gguf/gguf_types.h"

namespace haulway::gguf {

std::optional<DType> TypeOf(uint32_t id) {
  for (const DTypeInfo& info : AllDTypes()) {
    if (info.ggml_type >= 0 && static_cast<uint32_t>(info.ggml_type) == id) {
      return info.dtype;
    }
  }
  return std::nullopt;
}

std::optional<uint32_t> IdOf(DType dtype) {
  const int id = Describe(dtype).ggml_type;
  return id < 0 ? std::nullopt : std::optional<uint32_t>(id);
}

}  // namespace haulway::gguf
