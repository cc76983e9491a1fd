#include "convert/numbers.h"

#include <cstring>

#include "haulway/dtype.h"
#include "tensor/cast.h"

namespace haulway::convert {

namespace {

template <class T>
void Widen(std::span<const std::byte> bytes, double* out) {
  const size_t count = bytes.size() / sizeof(T);
  for (size_t i = 0; i < count; ++i) {
    T value;
    std::memcpy(&value, bytes.data() + i * sizeof(T), sizeof(T));
    out[i] = static_cast<double>(value);
  }
}

}  // namespace

bool AreNumbers(DType dtype) {
  return dtype == DType::kI64 || dtype == DType::kU64 ||
         CanCast(dtype, IsComplex(dtype) ? DType::kC128 : DType::kF64);
}

void ToNumbers(std::span<const std::byte> bytes, DType dtype, double* out) {
  switch (dtype) {
    case DType::kF32:
      return Widen<float>(bytes, out);
    case DType::kI64:
      return Widen<int64_t>(bytes, out);
    case DType::kU64:
      return Widen<uint64_t>(bytes, out);
    default:
      CastElements(bytes.data(), dtype, reinterpret_cast<std::byte*>(out),
                   IsComplex(dtype) ? DType::kC128 : DType::kF64,
                   bytes.size() / ItemBytes(dtype));
  }
}

}  // namespace haulway::convert
