// Writes little-endian fields into memory of a size computed in advance.

#pragma once

#include <cassert>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

namespace haulway {

// A ByteEncoder fills a span from its start. Requires of every call: the value
// fits.
class ByteEncoder {
 public:
  explicit ByteEncoder(std::span<std::byte> out) : out_(out) {}

  size_t position() const { return position_; }

  void U16(uint64_t value) { Little(value, 2); }
  void U32(uint64_t value) { Little(value, 4); }
  void U64(uint64_t value) { Little(value, 8); }
  void Bytes(std::span<const std::byte> bytes) {
    assert(bytes.size() <= out_.size() - position_);
    if (bytes.empty()) return;
    std::memcpy(out_.data() + position_, bytes.data(), bytes.size());
    position_ += bytes.size();
  }
  void Text(std::string_view text) {
    Bytes(std::as_bytes(std::span<const char>(text)));
  }
  void Fill(size_t count, uint8_t value) {
    assert(count <= out_.size() - position_);
    if (count == 0) return;
    std::memset(out_.data() + position_, value, count);
    position_ += count;
  }

 private:
  void Little(uint64_t value, int bytes) {
    assert(static_cast<size_t>(bytes) <= out_.size() - position_);
    for (int i = 0; i < bytes; ++i) {
      out_[position_++] = static_cast<std::byte>(value & 0xFF);
      value >>= 8;
    }
  }

  const std::span<std::byte> out_;
  size_t position_ = 0;
};

}  // namespace haulway
