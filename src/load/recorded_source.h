// What was read of a source, kept so that it can be read again without it.

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "haulway/source.h"
#include "haulway/status.h"

namespace haulway {

// A Recording holds what was read of one source, and of those that were
// opened beside it.
//
// Threads: every method may be called from many threads at once.
class Recording {
 public:
  struct File {
    // As OpenNeighbour() took it, behind that of the file beside which it was
    // opened and "//"; empty for the first.
    std::string name;
    uint64_t size = 0;
    // By offset; neither overlapping nor touching.
    std::map<uint64_t, std::vector<std::byte>> ranges;
  };

  // What is read from then on is no longer kept.
  void Stop() { stopped_.store(true, std::memory_order_relaxed); }
  bool stopped() const { return stopped_.load(std::memory_order_relaxed); }

  // Requires: stopped, and no read is under way that began before.
  const std::vector<File>& files() const { return files_; }

  size_t AddFile(std::string name, uint64_t size);
  void AddRange(size_t file, uint64_t offset, std::span<const std::byte> bytes);

 private:
  std::atomic<bool> stopped_{false};
  std::mutex mutex_;
  std::vector<File> files_ HAULWAY_GUARDED_BY(mutex_);
};

// Reads from `source` and keeps in `recording` what was read, until that is
// stopped. Until then nothing is viewed.
std::shared_ptr<const ByteSource> RecordSource(
    std::shared_ptr<const ByteSource> source,
    std::shared_ptr<Recording> recording);

struct ReplayedRange {
  uint64_t offset;
  std::span<const std::byte> bytes;
};
struct ReplayedFile {
  std::string_view name;
  uint64_t size = 0;
  std::vector<ReplayedRange> ranges;  // By offset; not overlapping.
};

// Reads what was recorded; the first file is the source, the others lie beside
// it. `owner` keeps names and bytes alive. What was not recorded is
// kCorrupt to read. Requires: at least one file; ranges within sizes.
std::shared_ptr<const ByteSource> ReplaySource(
    std::shared_ptr<const std::vector<ReplayedFile>> files,
    std::shared_ptr<const void> owner, std::string name);

}  // namespace haulway
