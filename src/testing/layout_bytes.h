// Builds the files of layouts in memory.

#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "base/digest.h"
#include "haulway/layout.h"

namespace haulway::test {

// Returns the file of a layout, assembled without the engine.
inline std::string Assemble(const Layout& layout) {
  std::string file(layout.size(), '\0');
  const auto put = [&](uint64_t offset, std::span<const std::byte> bytes) {
    // Iterators are slow without optimisation.
    if (!bytes.empty()) std::memcpy(&file[offset], bytes.data(), bytes.size());
  };
  std::vector<uint32_t> crc32;
  std::vector<std::vector<std::byte>> of;
  for (size_t i = 0; i < layout.payloads().size(); ++i) {
    const Payload& payload = layout.payloads()[i];
    const std::span bytes(payload.bytes, payload.length);
    std::vector<std::byte> stored(payload.bytes,
                                  payload.bytes + payload.length);
    if (layout.digesting() == Digesting::kInOrder) {
      const auto encoder = layout.Start(i);
      encoder->Digest(bytes);
      if (encoder->unit_bytes() != 0) encoder->Encode(bytes, stored);
      of.push_back(encoder->Finish());
    }
    put(payload.offset, stored);
    crc32.push_back(layout.digesting() == Digesting::kCrc32 ? Crc32(0, bytes)
                                                            : 0);
  }
  for (size_t i = 0; i < layout.frames().size(); ++i) {
    std::vector<std::byte> frame(layout.frames()[i].length);
    EXPECT_TRUE(layout.EncodeFrame(i, {crc32, of}, frame).ok());
    put(layout.frames()[i].offset, frame);
  }
  return file;
}

}  // namespace haulway::test
