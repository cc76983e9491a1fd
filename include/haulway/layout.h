// Writing files: one layout, many writes in flight, visible at the end.
//
// The engine knows no format. A format lays out a file before any of it is
// written: payloads, and the frames between them (headers, directories), some
// of which hold digests of payloads. The engine digests, encodes and writes
// from several threads, while the bytes are in cache.

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "haulway/export.h"
#include "haulway/limits.h"
#include "haulway/sink.h"
#include "haulway/source.h"
#include "haulway/status.h"

namespace haulway {

// Bytes of a tensor or record, and where they go.
struct Payload {
  uint64_t offset = 0;
  uint64_t length = 0;
  // The caller's, unchanged while they are written.
  const std::byte* bytes = nullptr;
  // If they are not in memory: `length` bytes of this source, which are read
  // piece by piece as they are written, from several threads at once, perhaps
  // twice. It must outlive the layout. MakeFunctionSource() makes one of a
  // function.
  const ByteSource* source = nullptr;
  uint64_t source_offset = 0;

  uint64_t end() const { return offset + length; }
  // Left for others to fill; reads as zeros.
  bool is_hole() const { return bytes == nullptr && source == nullptr; }
};

// What must be known before the bytes of a frame are.
enum class Needs : uint8_t {
  kNothing,
  kPayload,  // The digest of one payload.
  kAll,      // Those of all payloads.
};

// Bytes of a file that are no payload.
struct Frame {
  uint64_t offset = 0;
  uint64_t length = 0;
  Needs needs = Needs::kNothing;
  size_t payload = 0;  // Which one, of kPayload. No two frames name the same.

  uint64_t end() const { return offset + length; }
};

// How payloads are digested.
enum class Digesting : uint8_t {
  kNone,
  // CRC-32 of pieces can be joined, so that pieces may come in any order, from
  // any thread. Frames stand behind the payloads that they need.
  kCrc32,
  // From start to end, each by an encoder: SHA-256 or a MAC cannot be joined.
  // Frames stand anywhere.
  kInOrder,
};

// What is known of payloads, by their number.
struct Digests {
  std::span<const uint32_t> crc32;  // Of kCrc32; 0 for holes.
  // Of kInOrder: what the encoder's Finish() gave.
  std::span<const std::vector<std::byte>> of;
};

// A PayloadEncoder digests one payload, and may change it on its way. Not for
// two threads at once.
class HAULWAY_EXPORT PayloadEncoder {
 public:
  virtual ~PayloadEncoder() = default;
  // 0 if the payload is stored as it is; else what Encode() takes must be
  // multiples of this, but for the last.
  virtual uint64_t unit_bytes() const = 0;
  // Takes the next piece, of any length.
  virtual void Digest(std::span<const std::byte> piece) = 0;
  // Fills `out` with what is stored for the next piece, as long. Requires:
  // unit_bytes() is not 0.
  virtual void Encode(std::span<const std::byte> piece,
                      std::span<std::byte> out) = 0;
  // After all pieces were digested and encoded: what frames need to know.
  virtual std::vector<std::byte> Finish() = 0;
};

// A Layout says what every byte of a file will be. What neither a payload nor a
// frame covers is zero.
//
// Threads: every method may be called from many threads at once.
class HAULWAY_EXPORT Layout {
 public:
  virtual ~Layout() = default;
  virtual uint64_t size() const = 0;
  // Each by offset; none overlaps another.
  virtual std::span<const Payload> payloads() const = 0;
  virtual std::span<const Frame> frames() const = 0;
  virtual Digesting digesting() const { return Digesting::kNone; }
  // Fills `out`, as long as the frame. `digests` hold what the frame needs.
  virtual Status EncodeFrame(size_t frame, const Digests& digests,
                             std::span<std::byte> out) const = 0;
  // Of kInOrder. Two encoders of one payload store the same.
  virtual std::unique_ptr<PayloadEncoder> Start(size_t /*payload*/) const {
    return nullptr;
  }
  // Digest() of each encoder with the piece of its number. Requires: all are of
  // this layout.
  virtual void DigestTogether(
      std::span<PayloadEncoder* const> encoders,
      std::span<const std::span<const std::byte>> pieces) const {
    for (size_t i = 0; i < encoders.size(); ++i) encoders[i]->Digest(pieces[i]);
  }
  // Where the file is cut into two, for MakeSplitSink(); 0: nowhere.
  virtual uint64_t split() const { return 0; }
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

// A sink of two files: what is before `split` goes to `first`, the rest, from
// its byte 0 on, to `second`, which is committed first.
HAULWAY_EXPORT std::unique_ptr<ByteSink> MakeSplitSink(
    std::unique_ptr<ByteSink> first, std::unique_ptr<ByteSink> second,
    uint64_t split);

// Writes the whole file and commits it, from many threads; to an ordered sink
// from one, payloads of kInOrder then being digested twice, and those of
// sources read twice. On failure the sink is spent, and nothing has become
// visible.
HAULWAY_EXPORT Result<WriteStats> Write(const Layout& layout, ByteSink& sink,
                                        const WriteOptions& options = {});

// A PlannedFile is a laid-out file whose holes others fill, in any order, from
// many threads and processes, before it is made whole and visible.
//
// Threads: Fill() may be called from many threads at once. Other processes
// write to temporary_path() at the offsets of the layout.
class HAULWAY_EXPORT PlannedFile {
 public:
  // Makes the file, as long as the layout and with the payloads that are known,
  // under a temporary name beside `path`. Dropped without Commit(), it leaves
  // no trace. Fails with kUnsupported for a layout that digests in order.
  static Result<std::unique_ptr<PlannedFile>> Create(
      std::shared_ptr<const Layout> layout, std::string path,
      const FileSinkOptions& options = {});
  virtual ~PlannedFile() = default;

  virtual const std::string& temporary_path() const = 0;
  // Writes `bytes` to payload `payload`, `offset` bytes from its start. Fails
  // with kInvalidArgument where they leave it, and where it is no hole.
  virtual Status Fill(size_t payload, uint64_t offset,
                      std::span<const std::byte> bytes) = 0;
  // Reads the payloads back for their CRC-32 if the layout wants it, writes
  // what lies between them, and takes the name. Bytes that nobody filled are
  // zero. Requires: nobody writes any more. What is told counts Fill() too, but
  // not what other processes wrote; `seconds` are those of this call.
  virtual Result<WriteStats> Commit(const WriteOptions& options = {}) = 0;
};

}  // namespace haulway
