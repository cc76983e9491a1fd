// Parses whole files in memory, for tests of the header.

#pragma once

#include <cstddef>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "safetensors/safetensors_header.h"

namespace haulway::safetensors::test {

// A header and the memory it refers to. The memory has exactly the size that
// ParseHeader() requires, so that sanitizers detect any access past it.
struct ParsedHeader {
  std::vector<std::byte> memory;
  TreeArena arena;
  Header header;
};

// Returns a file: the length, `json`, and `data_bytes` zeros.
inline std::string WithPrefix(std::string_view json, size_t data_bytes = 0) {
  std::string file;
  for (int i = 0; i < 8; ++i) {
    file.push_back(static_cast<char>(json.size() >> (8 * i)));
  }
  file += json;
  file.resize(file.size() + data_bytes);
  return file;
}

inline Result<std::unique_ptr<ParsedHeader>> Parse(
    std::string_view file, Strictness strictness,
    const ParseLimits& limits = {}) {
  const auto bytes = std::as_bytes(std::span<const char>(file));
  HAULWAY_ASSIGN(
      const uint64_t json_bytes,
      ParsePrefix(bytes.subspan(0, std::min<size_t>(8, bytes.size())),
                  bytes.size(), limits));
  auto parsed = std::make_unique<ParsedHeader>();
  parsed->memory.assign(json_bytes + kPaddingBytes, std::byte{'"'});
  if (json_bytes != 0) {
    std::memcpy(parsed->memory.data(), bytes.data() + 8, json_bytes);
  }
  HAULWAY_ASSIGN(
      parsed->header,
      ParseHeader(parsed->memory, json_bytes, bytes.size() - 8 - json_bytes,
                  strictness, limits, &parsed->arena));
  return parsed;
}

}  // namespace haulway::safetensors::test
