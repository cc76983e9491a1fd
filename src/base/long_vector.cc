#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>

#include "haulway/buffer.h"
#include "haulway/options.h"

namespace haulway {

namespace {

constexpr size_t kHugePage = 2 * kMiB;
// From this size on, one huge page is faster to populate than the small pages
// it replaces.
constexpr size_t kLongBytes = 128 * kKiB;

size_t WholePages(size_t bytes) {
  return (bytes + kHugePage - 1) & ~(kHugePage - 1);
}

}  // namespace

void* AllocateLong(size_t bytes) {
  if (bytes < kLongBytes) return std::malloc(bytes);
  if (bytes > SIZE_MAX / 2) return nullptr;
  // Spare room to align both ends to huge pages.
  const size_t wanted = WholePages(bytes);
  const size_t mapped = wanted + kHugePage;
  void* const address =
      ::mmap(nullptr, mapped, PROT_READ | PROT_WRITE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (address == MAP_FAILED) return nullptr;
  auto* const begin = static_cast<std::byte*>(address);
  const size_t before =
      (kHugePage - reinterpret_cast<uintptr_t>(address) % kHugePage) %
      kHugePage;
  if (before > 0) ::munmap(begin, before);
  ::munmap(begin + before + wanted, mapped - before - wanted);
  // Only advice: without huge pages everything works, more slowly.
  (void)::madvise(begin + before, wanted, MADV_HUGEPAGE);
  return begin + before;
}

void FreeLong(void* memory, size_t bytes) {
  if (bytes < kLongBytes) return std::free(memory);
  ::munmap(memory, WholePages(bytes));
}

}  // namespace haulway
