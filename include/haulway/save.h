// Writing files: one layout, many writes in flight, visible at the end.
//
// The engine knows no format. A format lays out a file before any of it is
// written: payloads (the caller's bytes) and the gaps between them (headers,
// directories). The engine cuts the file into chunks, writes them from several
// threads, and computes the CRC-32 of payloads while they are in cache.

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "haulway/export.h"
#include "haulway/sink.h"
#include "haulway/status.h"

namespace haulway {

// Bytes that become part of a file as they are.
struct Payload {
  uint64_t offset = 0;
  uint64_t length = 0;
  // The caller's, unchanged while they are written; null for a hole, which is
  // left for others to fill and reads as zeros.
  const std::byte* bytes = nullptr;

  uint64_t end() const { return offset + length; }
};

// A FileLayout says what every byte of a file will be. Gap i is what lies
// between payload i - 1 and payload i: from the end of the one (or 0) to the
// start of the other (or size()).
//
// Threads: every method may be called from many threads at once.
class HAULWAY_EXPORT FileLayout {
 public:
  virtual ~FileLayout() = default;
  virtual uint64_t size() const = 0;
  // By offset, not overlapping.
  virtual std::span<const Payload> payloads() const = 0;
  // Whether EncodeGap() needs the CRC-32 of payloads.
  virtual bool wants_crc32() const = 0;
  // Fills `out`, which is as long as gap `gap`. `crc32` holds the CRC-32 of
  // each of the `gap` payloads before it, 0 for holes and if none are wanted.
  virtual Status EncodeGap(size_t gap, std::span<const uint32_t> crc32,
                           std::span<std::byte> out) const = 0;
};

struct WriteOptions {
  int threads = 0;  // 0: as many as the machine lets this process use.
  // Called with bytes done and bytes to do in all, from one thread at a time
  // but not always the same one.
  std::function<void(uint64_t done, uint64_t total)> progress = nullptr;
  const std::atomic<bool>* cancel = nullptr;  // Set to true to stop.
};

struct WriteStats {
  uint64_t bytes = 0;  // Of the file.
  uint64_t requests = 0;
  int threads = 0;
  double seconds = 0;
  bool direct = false;  // Around the page cache.
};

// Writes the whole file and commits it. On failure the sink is spent, and
// nothing has become visible.
HAULWAY_EXPORT Result<WriteStats> WriteFile(const FileLayout& layout,
                                            ByteSink& sink,
                                            const WriteOptions& options = {});

}  // namespace haulway
