// What many tests use.

#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <span>
#include <string>
#include <string_view>

namespace haulway::test {

inline constexpr uint64_t kSecond = 1'000'000'000;  // In nanoseconds.
inline constexpr uint64_t kMib = uint64_t{1} << 20;

// Returns the bytes that hexadecimal digits stand for.
inline std::string FromHex(std::string_view hex) {
  std::string bytes;
  for (size_t i = 0; i < hex.size(); i += 2) {
    bytes += static_cast<char>(
        std::stoi(std::string(hex.substr(i, 2)), nullptr, 16));
  }
  return bytes;
}

inline std::span<const std::byte> BytesOf(const std::string& text) {
  return std::as_bytes(std::span(text));
}

inline std::string ReadFile(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace haulway::test
