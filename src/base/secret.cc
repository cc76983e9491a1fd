#include <string.h>

#include <algorithm>
#include <utility>

#include "haulway/options.h"

namespace haulway {

Secret::Secret(std::span<const std::byte> bytes)
    : bytes_(new std::byte[bytes.size()]), size_(bytes.size()) {
  std::ranges::copy(bytes, bytes_.get());
}

Secret::Secret(std::string_view text)
    : Secret(std::as_bytes(std::span(text.data(), text.size()))) {}

Secret::Secret(const Secret& other) : Secret(other.bytes()) {}

Secret& Secret::operator=(const Secret& other) {
  if (this != &other) *this = Secret(other);
  return *this;
}

Secret::Secret(Secret&& other) noexcept
    : bytes_(std::move(other.bytes_)), size_(std::exchange(other.size_, 0)) {}

Secret& Secret::operator=(Secret&& other) noexcept {
  if (this != &other) {
    Clear();
    bytes_ = std::move(other.bytes_);
    size_ = std::exchange(other.size_, 0);
  }
  return *this;
}

Secret::~Secret() { Clear(); }

void Secret::Clear() {
  if (bytes_ != nullptr) ::explicit_bzero(bytes_.get(), size_);
  bytes_.reset();
  size_ = 0;
}

}  // namespace haulway
