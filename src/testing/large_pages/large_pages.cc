// A kernel with pages of 64 KiB, as aarch64 has them, over one with smaller
// pages. Loaded before the C library (LD_PRELOAD), this refuses what such a
// kernel refuses, and rounds what it rounds: an offset or an address that is no
// multiple of a page is EINVAL, and a length goes up to the next one, so that
// advice for half a page is advice for all of it.
//
// What stays as it was: a page of a mapped file is there in parts of 4 KiB,
// where the file ends within the page.

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace {

constexpr size_t kPage = 64 * 1024;
constexpr size_t kReal = 4096;
constexpr size_t kParts = kPage / kReal;
constexpr long kCachestat = 451;  // On every architecture.

// The last descriptor of /proc/self/pagemap that was opened.
int pagemap = -1;

template <class Function>
Function* Real(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

// Looked up before there are threads, and before anything may not allocate.
auto* const real_mmap = Real<decltype(::mmap)>("mmap");
auto* const real_munmap = Real<decltype(::munmap)>("munmap");
auto* const real_mprotect = Real<decltype(::mprotect)>("mprotect");
auto* const real_madvise = Real<decltype(::madvise)>("madvise");
auto* const real_mincore = Real<decltype(::mincore)>("mincore");
auto* const real_mremap = Real<decltype(::mremap)>("mremap");
auto* const real_sysconf = Real<decltype(::sysconf)>("sysconf");
auto* const real_syscall = Real<decltype(::syscall)>("syscall");
auto* const real_open = Real<decltype(::open)>("open");
auto* const real_close = Real<decltype(::close)>("close");
auto* const real_lseek = Real<decltype(::lseek)>("lseek");
auto* const real_read = Real<decltype(::read)>("read");

size_t RoundUp(size_t bytes) { return (bytes + kPage - 1) & ~(kPage - 1); }

template <class T>
bool IsOdd(T value) {
  return ((uintptr_t)value & (kPage - 1)) != 0;
}

int Invalid() {
  errno = EINVAL;
  return -1;
}

// An address for so many bytes; MAP_FAILED if there is none.
std::byte* Reserve(size_t bytes) {
  void* const found =
      real_mmap(nullptr, bytes + kPage, PROT_NONE,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (found == MAP_FAILED) return static_cast<std::byte*>(found);
  auto* const begin = static_cast<std::byte*>(found);
  const size_t before = RoundUp(reinterpret_cast<uintptr_t>(begin)) -
                        reinterpret_cast<uintptr_t>(begin);
  if (before > 0) real_munmap(begin, before);
  if (before < kPage) real_munmap(begin + before + bytes, kPage - before);
  return begin + before;
}

// Puts zeros behind the end of a file, up to the end of the page.
bool FillLastPage(std::byte* begin, size_t length, int protection, int fd,
                  off_t offset) {
  struct stat facts;
  if (::fstat(fd, &facts) != 0 || !S_ISREG(facts.st_mode)) return true;
  if (facts.st_size <= offset) return true;
  const auto held = static_cast<size_t>(facts.st_size - offset);
  const size_t from = (held + kReal - 1) / kReal * kReal;
  if (held > length || from == RoundUp(held)) return true;
  return real_mmap(begin + from, RoundUp(held) - from, protection,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1,
                   0) != MAP_FAILED;
}

}  // namespace

extern "C" {

long sysconf(int name) noexcept {
  return name == _SC_PAGESIZE ? static_cast<long>(kPage) : real_sysconf(name);
}

int getpagesize() noexcept { return kPage; }

void* mmap(void* address, size_t length, int protection, int flags, int fd,
           off_t offset) noexcept {
  const bool is_fixed = (flags & MAP_FIXED) != 0;
  if (IsOdd(offset) || (is_fixed && IsOdd(address)) || length == 0) {
    errno = EINVAL;
    return MAP_FAILED;
  }
  if (length > SIZE_MAX - 2 * kPage) {
    errno = ENOMEM;
    return MAP_FAILED;
  }
  length = RoundUp(length);
  if (is_fixed) {
    return real_mmap(address, length, protection, flags, fd, offset);
  }
  std::byte* const place = Reserve(length);
  if (place == MAP_FAILED) return place;
  void* const made =
      real_mmap(place, length, protection, flags | MAP_FIXED, fd, offset);
  if (made == MAP_FAILED ||
      ((flags & (MAP_PRIVATE | MAP_ANONYMOUS)) == MAP_PRIVATE &&
       !FillLastPage(place, length, protection, fd, offset))) {
    const int error = errno;
    real_munmap(place, length);
    errno = error;
    return MAP_FAILED;
  }
  return made;
}

int munmap(void* address, size_t length) noexcept {
  if (IsOdd(address)) return Invalid();
  return real_munmap(address, RoundUp(length));
}

int mprotect(void* address, size_t length, int protection) noexcept {
  if (IsOdd(address)) return Invalid();
  return real_mprotect(address, RoundUp(length), protection);
}

int madvise(void* address, size_t length, int advice) noexcept {
  if (IsOdd(address)) return Invalid();
  return real_madvise(address, RoundUp(length), advice);
}

int mincore(void* address, size_t length, unsigned char* pages) noexcept {
  if (IsOdd(address)) return Invalid();
  for (size_t done = 0; done < length; done += kPage) {
    std::array<unsigned char, kParts> parts;
    if (real_mincore(static_cast<std::byte*>(address) + done, kPage,
                     parts.data()) != 0) {
      return -1;
    }
    unsigned char all = 0;
    for (const unsigned char part : parts) all |= part;
    pages[done / kPage] = all;
  }
  return 0;
}

void* mremap(void* address, size_t old_length, size_t length, int flags,
             ...) noexcept {
  va_list rest;
  va_start(rest, flags);
  void* const to = (flags & MREMAP_FIXED) != 0 ? va_arg(rest, void*) : nullptr;
  va_end(rest);
  // Without a place of its own choice the library asks for none.
  if (IsOdd(address) || IsOdd(to) || to == nullptr) {
    errno = EINVAL;
    return MAP_FAILED;
  }
  return real_mremap(address, RoundUp(old_length), RoundUp(length), flags, to);
}

long syscall(long number, ...) noexcept {
  va_list rest;
  va_start(rest, number);
  std::array<long, 6> words;
  for (long& word : words) word = va_arg(rest, long);
  va_end(rest);
  const long result = real_syscall(number, words[0], words[1], words[2],
                                   words[3], words[4], words[5]);
  // Counts of pages.
  if (number == kCachestat && result == 0) {
    std::array<uint64_t, 5> counts;
    std::memcpy(counts.data(), reinterpret_cast<void*>(words[2]),
                sizeof counts);
    for (uint64_t& count : counts) count = (count + kParts - 1) / kParts;
    std::memcpy(reinterpret_cast<void*>(words[2]), counts.data(),
                sizeof counts);
  }
  return result;
}

int open(const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const int mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(rest, int) : 0;
  va_end(rest);
  const int fd = real_open(path, flags, mode);
  if (std::strcmp(path, "/proc/self/pagemap") == 0) pagemap = fd;
  return fd;
}

int close(int fd) {
  if (fd >= 0 && fd == pagemap) pagemap = -1;
  return real_close(fd);
}

off_t lseek(int fd, off_t offset, int whence) noexcept {
  if (fd < 0 || fd != pagemap) return real_lseek(fd, offset, whence);
  return real_lseek(fd, offset * static_cast<off_t>(kParts), whence);
}

// A page is in memory, in swap or of the process's own if a part is.
ssize_t read(int fd, void* out, size_t count) {
  if (fd < 0 || fd != pagemap) return real_read(fd, out, count);
  constexpr uint64_t kOfFile = uint64_t{1} << 61;
  constexpr uint64_t kInMemory = uint64_t{3} << 62;
  auto* entries = static_cast<uint64_t*>(out);
  for (size_t i = 0; i < count / sizeof(uint64_t); ++i) {
    std::array<uint64_t, kParts> parts;
    if (real_read(fd, parts.data(), sizeof parts) != sizeof parts) return -1;
    uint64_t entry = 0;
    for (const uint64_t part : parts) {
      const bool is_own = (part & kInMemory) != 0 && (part & kOfFile) == 0;
      const bool was_own = (entry & kInMemory) != 0 && (entry & kOfFile) == 0;
      if (is_own || (!was_own && (part & kInMemory) != 0)) entry = part;
    }
    entries[i] = entry;
  }
  return static_cast<ssize_t>(count);
}

// What the C library's headers call where they know how long `out` is.
ssize_t __read_chk(int fd, void* out, size_t count, size_t /*most*/) {
  return read(fd, out, count);
}

}  // extern "C"
