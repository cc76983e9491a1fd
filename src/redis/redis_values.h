// Finds the values that hold a file by their lengths, many per round trip. Keys
// are not searched for.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "haulway/status.h"
#include "redis/redis_connection.h"
#include "redis/redis_layout.h"

namespace haulway::redis {

// Commands in flight per connection.
inline constexpr size_t kBatch = 256;

// The value of one key, which is one contiguous range of the file.
struct Stored {
  uint64_t offset = 0;
  uint64_t length = 0;  // 0 if the key does not exist.
  uint64_t most = 0;    // Bytes of the piece from `offset` on.
  std::string key;
};

// Returns the failure for a missing key.
Status Missing(std::string_view key);

// Returns the lengths of values; 0 for keys that do not exist.
Result<std::vector<uint64_t>> ReadLengths(Connection& one,
                                          std::span<const std::string> keys);

// Returns the values of all non-empty pieces, by offset. A piece that is longer
// than its first value continues in further values. Its last value is the one
// that reaches the end of the piece, that is missing, or that is too long.
Result<std::vector<Stored>> FindValues(Connection& one,
                                       std::span<const Piece> pieces);

}  // namespace haulway::redis
