#include "tensor/byte_swap.h"

#include <cassert>
#include <cstring>

namespace haulway {

namespace {

template <class T, T (*kReverse)(T)>
void Swap(std::span<std::byte> bytes) {
  for (size_t at = 0; at + sizeof(T) <= bytes.size(); at += sizeof(T)) {
    T value;
    std::memcpy(&value, bytes.data() + at, sizeof(T));
    value = kReverse(value);
    std::memcpy(bytes.data() + at, &value, sizeof(T));
  }
}

uint16_t Reverse16(uint16_t value) { return __builtin_bswap16(value); }
uint32_t Reverse32(uint32_t value) { return __builtin_bswap32(value); }
uint64_t Reverse64(uint64_t value) { return __builtin_bswap64(value); }

}  // namespace

void SwapBytes(std::span<std::byte> bytes, uint8_t unit) {
  switch (unit) {
    case 1:
      return;
    case 2:
      return Swap<uint16_t, Reverse16>(bytes);
    case 4:
      return Swap<uint32_t, Reverse32>(bytes);
    case 8:
      return Swap<uint64_t, Reverse64>(bytes);
    default:
      assert(false && "unit is 1, 2, 4 or 8");
  }
}

}  // namespace haulway
