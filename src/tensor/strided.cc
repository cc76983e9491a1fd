#include "tensor/strided.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/checked.h"

namespace haulway {

std::optional<uint64_t> CountElements(std::span<const int64_t> shape) {
  uint64_t count = 1;
  bool overflow = false;
  for (const int64_t size : shape) {
    // If any size is zero, the count is zero, however large the other sizes
    // are.
    if (size == 0) return 0;
    if (!CheckedMultiply(count, static_cast<uint64_t>(size), &count)) {
      overflow = true;
      count = 1;
    }
  }
  if (overflow) return std::nullopt;
  return count;
}

std::optional<uint64_t> ElementExtent(std::span<const int64_t> shape,
                                      std::span<const int64_t> strides) {
  uint64_t last = 0;
  bool overflow = false;
  for (size_t d = 0; d < shape.size(); ++d) {
    if (shape[d] == 0) return 0;
    uint64_t reach = 0;
    if (!CheckedMultiply(static_cast<uint64_t>(shape[d] - 1),
                         static_cast<uint64_t>(strides[d]), &reach) ||
        !CheckedAdd(last, reach, &last)) {
      overflow = true;
      last = 0;
    }
  }
  uint64_t extent = 0;
  if (overflow || !CheckedAdd(last, 1, &extent)) return std::nullopt;
  return extent;
}

bool IsContiguous(std::span<const int64_t> shape,
                  std::span<const int64_t> strides) {
  if (std::ranges::find(shape, 0) != shape.end()) return true;
  int64_t expected = 1;
  for (size_t d = shape.size(); d-- > 0;) {
    if (shape[d] == 1) continue;
    if (strides[d] != expected) return false;
    if (__builtin_mul_overflow(expected, shape[d], &expected)) return false;
  }
  return true;
}

void GatherElements(const std::byte* first, std::span<const int64_t> shape,
                    std::span<const int64_t> strides, uint64_t item_bytes,
                    std::span<std::byte> out) {
  if (out.empty()) return;
  // The innermost dense dimensions are copied as one run.
  uint64_t run = item_bytes;
  size_t outer = shape.size();
  while (outer > 0 &&
         (shape[outer - 1] == 1 ||
          static_cast<uint64_t>(strides[outer - 1]) * item_bytes == run)) {
    run *= static_cast<uint64_t>(shape[outer - 1]);
    --outer;
  }
  std::vector<int64_t> index(outer, 0);
  uint64_t offset = 0;  // In elements.
  for (size_t done = 0; done < out.size(); done += run) {
    std::memcpy(out.data() + done, first + offset * item_bytes, run);
    for (size_t d = outer; d-- > 0;) {
      offset += static_cast<uint64_t>(strides[d]);
      if (++index[d] < shape[d]) break;
      offset -=
          static_cast<uint64_t>(strides[d]) * static_cast<uint64_t>(shape[d]);
      index[d] = 0;
    }
  }
}

}  // namespace haulway
