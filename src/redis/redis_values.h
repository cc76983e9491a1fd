// The values in which a file lies: found by asking for their lengths, many in
// one round trip. Nothing is searched for.

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

// Commands in flight on a connection.
inline constexpr size_t kBatch = 256;

// One key, all of which is one run of bytes of the file.
struct Stored {
  uint64_t offset = 0;
  uint64_t length = 0;  // 0 if there is no such key.
  uint64_t most = 0;    // What of its piece begins here.
  std::string key;
};

// The failure that a key is which should be there.
Status Missing(std::string_view key);

// Lengths of values; 0 of those that are not there.
Result<std::vector<uint64_t>> ReadLengths(Connection& one,
                                          std::span<const std::string> keys);

// The values of all pieces that are not empty, by offset. A piece that is
// longer than its first value goes on in others, until one is missing or is
// longer than what is left, which is then the last one of its piece.
Result<std::vector<Stored>> FindValues(Connection& one,
                                       std::span<const Piece> pieces);

}  // namespace haulway::redis
