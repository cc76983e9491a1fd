// A buffered window over a source for parsers that mostly move forward.

#pragma once

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "haulway/options.h"
#include "haulway/source.h"
#include "haulway/status.h"

namespace haulway::scan {

// A ByteWindow buffers some bytes of [begin, end) of a source. It reads ahead,
// but does not read long arguments that a parser skips.
class ByteWindow {
 public:
  static constexpr uint64_t kBytes = 64 * kKiB;
  static constexpr uint64_t kFirstBytes = 4 * kKiB;

  // Requires: `source` outlives this; begin <= end <= source.size().
  ByteWindow(const ByteSource& source, uint64_t end)
      : source_(&source), end_(end) {}

  uint64_t end() const { return end_; }

  // Returns the buffered bytes from `at` on: at least `wanted`, or fewer if the
  // range ends before that. They are valid until the next call. Requires:
  // wanted <= kBytes.
  Result<std::span<const std::byte>> Peek(uint64_t at, uint64_t wanted) {
    assert(wanted <= kBytes);
    const uint64_t have = at < end_ ? std::min(wanted, end_ - at) : 0;
    if (have == 0) return std::span<const std::byte>();
    if (at < start_ || at + have > start_ + held_.size()) {
      // Most inputs are not pickles, and the parser stops after a few bytes. So
      // the first read is small.
      const uint64_t most = held_.empty() ? kFirstBytes : kBytes;
      held_.resize(std::min(std::max(most, wanted), end_ - at));
      start_ = at;
      Status status = source_->ReadAt(at, held_);
      if (!status.ok()) {
        held_.clear();
        return status;
      }
    }
    return std::span<const std::byte>(held_).subspan(at - start_);
  }

 private:
  const ByteSource* source_;
  uint64_t end_;
  uint64_t start_ = 0;  // Offset of held_ in the source.
  std::vector<std::byte> held_;
};

inline std::string_view TextOf(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace haulway::scan
