// Which keys a Tensorizer file has in Redis: computed from what stands before
// its first tensor. A codec: no I/O.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "haulway/status.h"

namespace haulway::redis {

// Longer data is written as several keys; a value holds 512 MiB at most.
inline constexpr uint64_t kMostValueBytes = uint64_t{64} << 20;
inline constexpr uint64_t kMostStringBytes = uint64_t{512} << 20;

// A run of bytes of the file, and the key in which it begins.
struct Piece {
  uint64_t offset = 0;
  uint64_t length = 0;
  std::string stem;  // Begin of the key, which ends in ":OFFSET".

  std::string KeyAt(uint64_t at) const {
    return stem + ":" + std::to_string(at);
  }
  std::string key() const { return KeyAt(offset); }
};

struct KeyLayout {
  // By offset, without gaps; what comes first is the file's header.
  std::vector<Piece> pieces;
  uint64_t file_bytes = 0;  // With the zeros at the end, of which no key is.
};

std::string HeaderKey(std::string_view prefix);

// `head` is the file up to its first tensor, or more. Fails with kCorrupt and
// the like if that is no such file, and kUnsupported for layouts that no
// release of Tensorizer writes.
Result<KeyLayout> LayOutKeys(std::string_view prefix,
                             std::span<const std::byte> head);

}  // namespace haulway::redis
