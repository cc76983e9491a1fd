// A LongVector is a std::vector whose memory is of huge pages once it is long,
// where the system gives them: as small pages, getting that memory takes
// several times as long as filling it.

#pragma once

#include <cstddef>
#include <limits>
#include <new>
#include <vector>

#include "haulway/export.h"

namespace haulway {

// Memory for `bytes`, aligned for anything; null if the system has none. Goes
// back by FreeLong() with the same size.
HAULWAY_EXPORT void* AllocateLong(size_t bytes);
HAULWAY_EXPORT void FreeLong(void* memory, size_t bytes);

template <class T>
class LongAllocator {
 public:
  using value_type = T;
  LongAllocator() = default;
  template <class Other>
  LongAllocator(const LongAllocator<Other>&) {}

  // Throws std::bad_alloc, as allocators must.
  T* allocate(size_t count) {
    void* memory = nullptr;
    if (count <= std::numeric_limits<size_t>::max() / sizeof(T)) {
      memory = AllocateLong(count * sizeof(T));
    }
    if (memory == nullptr) throw std::bad_alloc();
    return static_cast<T*>(memory);
  }
  void deallocate(T* memory, size_t count) {
    FreeLong(memory, count * sizeof(T));
  }
  friend bool operator==(const LongAllocator&, const LongAllocator&) {
    return true;
  }
};

template <class T>
using LongVector = std::vector<T, LongAllocator<T>>;

}  // namespace haulway
