// Inflates the beginning of zlib, gzip, zip or zstd data.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "haulway/status.h"

namespace haulway::scan {

enum class Deflated : uint8_t { kRaw, kZlib, kGzip, kZstd };

struct Inflated {
  std::vector<std::byte> bytes;
  // True if `bytes` has all of the output. Otherwise there is more than the
  // caller asked for, or the rest is damaged; a reader uses these bytes before
  // it finds the damage.
  bool whole = false;
  bool damaged = false;
};

// Inflates `deflated` up to `most` bytes of output: every gzip member, every
// zlib stream, every zstd frame. Fails with kLimit if memory cannot be
// allocated.
Result<Inflated> Inflate(std::span<const std::byte> deflated, Deflated form,
                         uint64_t most);

}  // namespace haulway::scan
