// Computes the keys of a Tensorizer file in Redis from the bytes before its
// first tensor. A codec: no I/O.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "haulway/status.h"

namespace haulway::redis {

// Longer data is written as several keys. The limit of Redis for a value is 512
// MiB.
inline constexpr uint64_t kMostValueBytes = uint64_t{64} << 20;
inline constexpr uint64_t kMostStringBytes = uint64_t{512} << 20;

// A range of the file, and the key in which it begins.
struct Piece {
  uint64_t offset = 0;
  uint64_t length = 0;
  std::string stem;  // Start of the key, which ends in ":OFFSET".

  std::string KeyAt(uint64_t at) const {
    return stem + ":" + std::to_string(at);
  }
  std::string key() const { return KeyAt(offset); }
};

struct KeyLayout {
  // By offset, without gaps. The first piece is the file's header.
  std::vector<Piece> pieces;
  uint64_t file_bytes = 0;  // Includes the zeros at the end, which have no key.
};

std::string HeaderKey(std::string_view prefix);

// Computes the keys. `head`: the file up to its first tensor, or more. Fails
// with kCorrupt and similar codes if `head` is not such a file, and with
// kUnsupported for layouts that no release of Tensorizer writes.
Result<KeyLayout> LayOutKeys(std::string_view prefix,
                             std::span<const std::byte> head);

}  // namespace haulway::redis
