// The size of a page of memory, which mappings and advice are made of.

#pragma once

#include <unistd.h>

#include <cstdint>

namespace haulway {

// 4 KiB on x86-64; on aarch64 the kernel is built for 4, 16 or 64 KiB. A
// handler of a signal may call this.
inline uint64_t PageBytes() {
  return static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
}

// The smallest page. Copies to and from addresses with the same offset within
// one are fastest, whatever the kernel's page is.
inline constexpr uint64_t kPageBytes = 4096;

// From this size on, bytes in memory keep their source's offset within a page.
// For fewer, padding costs more memory than direct I/O gains.
inline constexpr uint64_t kSmallestPhased = uint64_t{64} << 10;

}  // namespace haulway
