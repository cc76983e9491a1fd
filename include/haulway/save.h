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
#include <memory>
#include <span>
#include <string>

#include "haulway/export.h"
#include "haulway/limits.h"
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
  // Of memory beside the caller's: what is copied or encrypted on its way. Few
  // threads need little; one writes whatever the budget.
  uint64_t memory_budget = 256 * kMiB;
};

// The names that LoadStats has too mean the same.
struct WriteStats {
  uint64_t bytes = 0;          // Of the file.
  uint64_t tensor_bytes = 0;   // Of payloads, as the caller has them.
  uint64_t written_bytes = 0;  // Without what was left a hole.
  uint64_t requests = 0;
  int threads = 0;
  double seconds = 0;
  // Where the time went. That of digesting, encoding and writing is of all
  // threads added up, so the sum may exceed `seconds`.
  double allocate_seconds = 0;  // Making the file, and getting space for it.
  double digest_seconds = 0;
  double encode_seconds = 0;  // Encrypting.
  double write_seconds = 0;
  double commit_seconds = 0;  // Until it is durable and visible.
  bool direct = false;        // Around the page cache.
};

// Writes the whole file and commits it. On failure the sink is spent, and
// nothing has become visible.
HAULWAY_EXPORT Result<WriteStats> WriteFile(const FileLayout& layout,
                                            ByteSink& sink,
                                            const WriteOptions& options = {});

// A PlannedFile is a laid-out file whose payloads others fill, in any order,
// from many threads and processes, before it is made whole and visible.
//
// Threads: Fill() may be called from many threads at once. Other processes
// write to temporary_path() at the offsets of the layout.
class HAULWAY_EXPORT PlannedFile {
 public:
  // Makes the file, as long as the layout and without data, under a temporary
  // name beside `path`. Dropped without Commit(), it leaves no trace.
  static Result<std::unique_ptr<PlannedFile>> Create(
      std::shared_ptr<const FileLayout> layout, std::string path,
      const FileSinkOptions& options = {});
  virtual ~PlannedFile() = default;

  virtual const std::string& temporary_path() const = 0;
  // Writes `bytes` to payload `payload`, `offset` bytes from its start. Fails
  // with kInvalidArgument where they leave it.
  virtual Status Fill(size_t payload, uint64_t offset,
                      std::span<const std::byte> bytes) = 0;
  // Reads the payloads back for their CRC-32 if the layout wants it, writes
  // what lies between them, and takes the name. Bytes that nobody filled are
  // zero. Requires: nobody writes any more. What is told counts Fill() too, but
  // not what other processes wrote; `seconds` are those of this call.
  virtual Result<WriteStats> Commit(const WriteOptions& options = {}) = 0;
};

}  // namespace haulway
