// Divides an object into the parts of an upload.

#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "haulway/options.h"

namespace haulway::s3 {

inline constexpr uint64_t kLeastPart = 8 * kMiB;
inline constexpr uint64_t kMostParts = 10'000;  // The limit of S3.

// Returns the length of part `number`, counted from 0. If the size is known,
// 10,000 parts are enough for it. If not, part lengths grow, so that 10,000
// parts reach 40 TiB.
inline uint64_t PartBytes(std::optional<uint64_t> size, uint64_t number) {
  if (!size.has_value()) {
    return kLeastPart << std::min<uint64_t>(number / 1000, 9);
  }
  const uint64_t least = (*size + kMostParts - 1) / kMostParts;
  return std::max(kLeastPart, (least + kMiB - 1) / kMiB * kMiB);
}

}  // namespace haulway::s3
