// A ByteWriter appends little-endian fields to a vector it does not own.

#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

namespace haulway::tensorizer {

class ByteWriter {
 public:
  explicit ByteWriter(std::vector<std::byte>* out) : out_(*out) {}

  void U8(uint8_t value) { Number(value, 1); }
  void U16(uint16_t value) { Number(value, 2); }
  void U32(uint32_t value) { Number(value, 4); }
  void U64(uint64_t value) { Number(value, 8); }
  void Bytes(std::span<const std::byte> bytes) {
    out_.insert(out_.end(), bytes.begin(), bytes.end());
  }
  void Text(std::string_view text) {
    Bytes(std::as_bytes(std::span(text.data(), text.size())));
  }
  void Zeros(size_t count) { out_.resize(out_.size() + count); }

  // Reserves space for a length, and returns its position for FillLength(),
  // which stores the number of bytes that were written after it.
  size_t Reserve64() {
    U64(0);
    return out_.size();
  }
  void FillLength(size_t place) {
    uint64_t length = out_.size() - place;
    for (size_t i = 0; i < 8; ++i, length >>= 8) {
      out_[place - 8 + i] = static_cast<std::byte>(length & 0xFF);
    }
  }
  size_t size() const { return out_.size(); }

 private:
  void Number(uint64_t value, int bytes) {
    for (int i = 0; i < bytes; ++i, value >>= 8) {
      out_.push_back(static_cast<std::byte>(value & 0xFF));
    }
  }

  std::vector<std::byte>& out_;
};

}  // namespace haulway::tensorizer
