// A ByteCursor reads little-endian fields from a span, and never past its end.
//
// A read that does not fit sets a sticky failure and returns zero, so a parser
// can read a whole record and check once. Requires: the caller checks ok()
// before it uses the values for anything but more reads.

#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

namespace haulway {

class ByteCursor {
 public:
  explicit ByteCursor(std::span<const std::byte> bytes) : bytes_(bytes) {}

  bool ok() const { return ok_; }
  size_t position() const { return position_; }
  size_t remaining() const { return bytes_.size() - position_; }

  uint8_t U8() { return Fixed<uint8_t>(); }
  uint16_t U16() { return Fixed<uint16_t>(); }
  uint32_t U32() { return Fixed<uint32_t>(); }
  uint64_t U64() { return Fixed<uint64_t>(); }

  // Returns the next `length` bytes in place, or an empty span on failure.
  std::span<const std::byte> Bytes(uint64_t length) {
    if (!ok_ || length > remaining()) {
      ok_ = false;
      return {};
    }
    auto bytes = bytes_.subspan(position_, static_cast<size_t>(length));
    position_ += static_cast<size_t>(length);
    return bytes;
  }
  std::string_view Text(uint64_t length) {
    auto bytes = Bytes(length);
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  void Skip(uint64_t length) { (void)Bytes(length); }

 private:
  template <class T>
  T Fixed() {
    static_assert(std::endian::native == std::endian::little,
                  "swap here to support a big-endian machine");
    auto bytes = Bytes(sizeof(T));
    T value = 0;
    if (ok_) std::memcpy(&value, bytes.data(), sizeof(T));
    return value;
  }

  std::span<const std::byte> bytes_;
  size_t position_ = 0;
  bool ok_ = true;
};

}  // namespace haulway
