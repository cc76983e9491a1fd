// Inflating the beginning of what zlib, gzip or a zip holds.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "haulway/status.h"

namespace haulway::scan {

enum class Deflated : uint8_t { kRaw, kZlib, kGzip };

struct Inflated {
  std::vector<std::byte> bytes;
  // All there is; else there is more than asked for, or the rest is damaged,
  // which a reader would only find after it has used these.
  bool whole = false;
  bool damaged = false;
};

// Inflates at most `most` bytes of `deflated`: every member of gzip, every
// stream of zlib. Fails with kLimit if there is no memory.
Result<Inflated> Inflate(std::span<const std::byte> deflated, Deflated form,
                         uint64_t most);

}  // namespace haulway::scan
