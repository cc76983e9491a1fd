// Builds GGUF files in memory, byte for byte as specified.

#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "testing/zip_builder.h"

namespace haulway::gguf::test {

using haulway::test::Little;

inline std::string Text(std::string_view text) {
  return Little(text.size(), 8) + std::string(text);
}

// Returns a key-value. `value` is in the file's encoding.
inline std::string KeyValue(std::string_view key, uint32_t type,
                            std::string_view value) {
  return Text(key) + Little(type, 4) + std::string(value);
}

inline std::string Array(uint32_t type, uint64_t count,
                         std::string_view values) {
  return Little(type, 4) + Little(count, 8) + std::string(values);
}

// Returns a tensor's row. `dims` has the fastest dimension first.
inline std::string TensorRow(std::string_view name,
                             const std::vector<uint64_t>& dims, uint32_t type,
                             uint64_t offset) {
  std::string row = Text(name) + Little(dims.size(), 4);
  for (const uint64_t size : dims) row += Little(size, 8);
  return row + Little(type, 4) + Little(offset, 8);
}

// Returns the padded header and `data`.
inline std::string File(const std::vector<std::string>& key_values,
                        const std::vector<std::string>& rows,
                        std::string_view data, uint64_t alignment = 32,
                        uint32_t version = 3) {
  std::string file = "GGUF" + Little(version, 4) + Little(rows.size(), 8) +
                     Little(key_values.size(), 8);
  for (const std::string& text : key_values) file += text;
  for (const std::string& text : rows) file += text;
  file.resize((file.size() + alignment - 1) / alignment * alignment);
  return file + std::string(data);
}

// Returns a file with two tensors of 24 and 36 bytes, the second of one block,
// and some values.
inline std::string Example() {
  return File({KeyValue("general.architecture", 8, Text("llama")),
               KeyValue("tokens", 9, Array(8, 2, Text("a") + Text("\xFF"))),
               KeyValue("flag", 7, "\1")},
              {TensorRow("w", {3, 2}, 0, 0), TensorRow("q", {64}, 2, 32)},
              std::string(96, 'd'));
}

}  // namespace haulway::gguf::test
