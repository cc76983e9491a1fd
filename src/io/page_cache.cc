#include "io/page_cache.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <optional>
#include <vector>

#include "base/checked.h"
#include "base/page_bytes.h"
#include "haulway/options.h"

namespace haulway {

namespace {

constexpr uint64_t kLeastPage = 4096;  // No kernel has smaller ones.
// 32 samples of 128 KiB are 1024 pages, which take some tens of microseconds.
constexpr uint64_t kSamples = 32;
constexpr uint64_t kSampleBytes = 128 * kKiB;
// Largest range per mincore(2) call.
constexpr uint64_t kMostMapped = 2 * kMiB;

// Returns the samples of the ranges, in whole pages.
std::vector<ByteRange> Samples(uint64_t file_bytes,
                               std::span<const ByteRange> ranges) {
  std::vector<ByteRange> samples;
  uint64_t total = 0;
  for (const ByteRange& range : ranges) {
    if (!RangeFits(range.offset, range.length, file_bytes)) continue;
    if (!CheckedAdd(total, range.length, &total)) return samples;
  }
  const uint64_t step =
      std::max(kSampleBytes, total / kSamples + (total % kSamples != 0));
  const uint64_t page = PageBytes();
  uint64_t next = 0;  // Position in the concatenation of the ranges.
  uint64_t start = 0;
  for (const ByteRange& range : ranges) {
    if (!RangeFits(range.offset, range.length, file_bytes)) continue;
    while (next < start + range.length) {
      const uint64_t within = next - start;
      const uint64_t begin = (range.offset + within) / page * page;
      const uint64_t end =
          range.offset +
          std::min(range.length, within + std::min(step, kSampleBytes));
      samples.push_back({begin, (end - begin + page - 1) / page * page});
      next += step;
    }
    start += range.length;
  }
  return samples;
}

#ifdef SYS_cachestat
constexpr long kCachestat = SYS_cachestat;
#else
constexpr long kCachestat = 451;  // The same on every architecture.
#endif

// Returns the number of pages in memory, or nullopt if the kernel lacks or
// refuses the call.
std::optional<uint64_t> CachedPages(int fd, const ByteRange& range) {
  struct {
    uint64_t offset;
    uint64_t length;
  } asked{range.offset, range.length};
  struct {
    uint64_t cached, dirty, writeback, evicted, recently_evicted;
  } found{};
  if (::syscall(kCachestat, fd, &asked, &found, 0u) != 0) return std::nullopt;
  return found.cached;
}

// Returns whether mincore(2) tells this process the truth: for files that a
// process may not write, it reports all pages as resident.
bool MayAskMincore(int fd) {
  struct stat facts;
  return ::fstat(fd, &facts) == 0 &&
         (::geteuid() == 0 || ::geteuid() == facts.st_uid);
}

// Returns the number of pages in memory, found by mincore(2). Requires: whole
// pages, at most kMostMapped bytes.
std::optional<uint64_t> MappedPages(int fd, const ByteRange& range) {
  void* address = ::mmap(nullptr, range.length, PROT_READ, MAP_SHARED, fd,
                         static_cast<off_t>(range.offset));
  if (address == MAP_FAILED) return std::nullopt;
  std::array<unsigned char, kMostMapped / kLeastPage> pages{};
  const bool told = ::mincore(address, range.length, pages.data()) == 0;
  ::munmap(address, range.length);
  if (!told) return std::nullopt;
  return std::ranges::count_if(pages,
                               [](unsigned char page) { return page & 1; });
}

}  // namespace

double ResidentShare(int fd, uint64_t file_bytes,
                     std::span<const ByteRange> ranges) {
  uint64_t asked = 0;
  uint64_t found = 0;
  bool has_cachestat = true;
  for (const ByteRange& sample : Samples(file_bytes, ranges)) {
    std::optional<uint64_t> pages;
    if (has_cachestat) pages = CachedPages(fd, sample);
    if (!pages.has_value()) {
      has_cachestat = false;
      if (!MayAskMincore(fd)) return 1;
      pages = MappedPages(fd, sample);
    }
    if (!pages.has_value()) return 1;
    asked += sample.length / PageBytes();
    found += *pages;
  }
  if (asked == 0) return 1;
  return std::min(1.0, static_cast<double>(found) / static_cast<double>(asked));
}

bool IsResident(int fd, const ByteRange& range) {
  if (range.length == 0) return true;
  const uint64_t page = PageBytes();
  const uint64_t begin = range.offset / page * page;
  const uint64_t end = (range.offset + range.length + page - 1) / page * page;
  const ByteRange whole{begin, end - begin};
  const std::optional<uint64_t> cached = CachedPages(fd, whole);
  if (cached.has_value()) return *cached == whole.length / page;
  if (!MayAskMincore(fd)) return false;
  for (uint64_t at = begin; at < end; at += kMostMapped) {
    const uint64_t length = std::min(kMostMapped, end - at);
    if (MappedPages(fd, {at, length}) != length / page) return false;
  }
  return true;
}

}  // namespace haulway
