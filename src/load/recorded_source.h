// Records the bytes that are read from a source, so that they can be read again
// without the source.

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

// A Recording holds the bytes read from one source and from the sources opened
// beside it.
//
// Threads: every method may be called from many threads at once.
class Recording {
 public:
  struct File {
    // Name that OpenNeighbour() was given, preceded by the recorded name of the
    // file it was opened from and "//" unless that name is empty. Empty for the
    // first file. For OpenBase(): that name, "//base//", and the base's
    // version.
    std::string name;
    uint64_t size = 0;
    // By offset; ranges neither overlap nor touch.
    std::map<uint64_t, std::vector<std::byte>> ranges;
  };

  // Stops recording: later reads are not kept.
  void Stop() { stopped_.store(true, std::memory_order_relaxed); }
  bool stopped() const { return stopped_.load(std::memory_order_relaxed); }

  // Requires: recording is stopped, and no read that began earlier is still
  // running.
  const std::vector<File>& files() const { return files_; }

  size_t AddFile(std::string name, uint64_t size);
  void AddRange(size_t file, uint64_t offset, std::span<const std::byte> bytes);

 private:
  std::atomic<bool> stopped_{false};
  std::mutex mutex_;
  std::vector<File> files_ HAULWAY_GUARDED_BY(mutex_);
};

// Returns a source that reads from `source` and keeps the bytes in `recording`
// until recording is stopped. Until then View() returns nothing.
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
  std::vector<ReplayedRange> ranges;  // Sorted by offset, without overlap.
};

// Returns a source that reads recorded bytes. The first file is the source; the
// others are its neighbours. `owner` keeps names and bytes alive. Reading bytes
// that were not recorded fails with kCorrupt. Requires: at least one file;
// ranges within the file sizes.
std::shared_ptr<const ByteSource> ReplaySource(
    std::shared_ptr<const std::vector<ReplayedFile>> files,
    std::shared_ptr<const void> owner, std::string name);

}  // namespace haulway
