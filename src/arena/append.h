// Appends numbers to messages, in this machine's byte order.

#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace haulway {

template <class T>
void Append(T value, std::vector<std::byte>* out) {
  const auto bytes = std::as_bytes(std::span<const T>(&value, 1));
  out->insert(out->end(), bytes.begin(), bytes.end());
}

}  // namespace haulway
