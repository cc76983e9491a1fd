// Files as layouts have them, in memory.

#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "haulway/record_layout.h"

namespace haulway::testing {

// The file that a layout says.
inline std::string Assemble(const RecordLayout& layout) {
  std::string file(layout.size(), '\0');
  const auto put = [&](uint64_t offset, std::span<const std::byte> bytes) {
    std::ranges::copy(bytes, std::as_writable_bytes(std::span(file)).begin() +
                                 static_cast<ptrdiff_t>(offset));
  };
  for (const FixedBytes& fixed : layout.fixed()) {
    put(fixed.offset, fixed.bytes);
  }
  for (size_t i = 0; i < layout.records().size(); ++i) {
    const FileRecord& record = layout.records()[i];
    const auto encoder = layout.Start(i);
    const std::span payload(record.bytes, record.payload_bytes);
    std::vector<std::byte> stored(payload.begin(), payload.end());
    encoder->Digest(payload);
    if (encoder->unit_bytes() != 0) encoder->Encode(payload, stored);
    put(record.payload_offset, stored);
    std::vector<std::byte> header(record.header_size());
    encoder->Finish(header);
    put(record.header_offset, header);
  }
  const std::vector<std::byte> tail = layout.Tail();
  put(layout.size() - tail.size(), tail);
  return file;
}

}  // namespace haulway::testing
