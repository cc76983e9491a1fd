#include "gguf/gguf_types.h"

#include <iterator>

namespace haulway::gguf {

namespace {

struct Numbered {
  uint32_t id;
  DType dtype;
};

// enum ggml_type in ggml.h. 4, 5, 31 to 33 and 36 to 38 were taken back.
constexpr Numbered kTable[] = {
    {0, DType::kF32},    {1, DType::kF16},     {2, DType::kQ4_0},
    {3, DType::kQ4_1},   {6, DType::kQ5_0},    {7, DType::kQ5_1},
    {8, DType::kQ8_0},   {9, DType::kQ8_1},    {10, DType::kQ2K},
    {11, DType::kQ3K},   {12, DType::kQ4K},    {13, DType::kQ5K},
    {14, DType::kQ6K},   {15, DType::kQ8K},    {16, DType::kIQ2XXS},
    {17, DType::kIQ2XS}, {18, DType::kIQ3XXS}, {19, DType::kIQ1S},
    {20, DType::kIQ4NL}, {21, DType::kIQ3S},   {22, DType::kIQ2S},
    {23, DType::kIQ4XS}, {24, DType::kI8},     {25, DType::kI16},
    {26, DType::kI32},   {27, DType::kI64},    {28, DType::kF64},
    {29, DType::kIQ1M},  {30, DType::kBF16},   {34, DType::kTQ1_0},
    {35, DType::kTQ2_0}, {39, DType::kMXFP4},  {40, DType::kNVFP4},
    {41, DType::kQ1_0},  {42, DType::kQ2_0},
};

}  // namespace

std::optional<DType> TypeOf(uint32_t id) {
  for (const Numbered& type : kTable) {
    if (type.id == id) return type.dtype;
  }
  return std::nullopt;
}

std::optional<uint32_t> IdOf(DType dtype) {
  for (const Numbered& type : kTable) {
    if (type.dtype == dtype) return type.id;
  }
  return std::nullopt;
}

}  // namespace haulway::gguf
