// Layouts of files, and writing them: the interface between formats and the
// engine.
//
// A format lays out a file before any of it is written, as payloads and the
// frames between them (headers, directories); some frames hold digests of
// payloads. The engine, which knows no format, digests, encodes and writes from
// several threads while the bytes are in the processor's cache.
//
// Units: sizes and offsets are bytes unless a field says otherwise.

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "haulway/fields.h"
#include "haulway/options.h"
#include "haulway/sink.h"
#include "haulway/source.h"
#include "haulway/status.h"

namespace haulway {

// Bytes of a tensor or record, and their place in the file.
struct Payload {
  uint64_t offset = 0;
  uint64_t length = 0;
  // The caller's memory, unchanged while it is written.
  const std::byte* bytes = nullptr;
  // If `bytes` is null: `length` bytes of this source, read in pieces while
  // they are written, from several threads at once, perhaps twice. The source
  // must outlive the layout. MakeFunctionSource() makes a source from a
  // function.
  const ByteSource* source = nullptr;
  uint64_t source_offset = 0;

  uint64_t end() const { return offset + length; }
  // Left for others to fill; reads as zeros.
  bool is_hole() const { return bytes == nullptr && source == nullptr; }
};

// What must be known before a frame can be encoded.
enum class Needs : uint8_t {
  kNothing,
  kPayload,  // The digest of one payload.
  kAll,      // The digests of all payloads.
};

// Bytes of a file that are not payload.
struct Frame {
  uint64_t offset = 0;
  uint64_t length = 0;
  Needs needs = Needs::kNothing;
  size_t payload = 0;  // For kPayload; no two frames name the same one.

  uint64_t end() const { return offset + length; }
};

// How payloads are digested.
enum class Digesting : uint8_t {
  kNone,
  // CRC-32 of pieces can be combined, so pieces may be digested in any order
  // and by any thread. Frames lie after the payloads that they need.
  kCrc32,
  // From start to end, each payload by one encoder: SHA-256 or a MAC cannot be
  // combined from pieces. Frames may lie anywhere.
  kInOrder,
};

// The digests of payloads, by the payload's number.
struct Digests {
  std::span<const uint32_t> crc32;  // For kCrc32; 0 for holes.
  // For kInOrder: the results of the encoders' Finish().
  std::span<const std::vector<std::byte>> of;
};

// A PayloadEncoder digests one payload and may transform it before it is
// written. Not for two threads at once.
class HAULWAY_EXPORT PayloadEncoder {
 public:
  virtual ~PayloadEncoder() = default;
  // Returns 0 if the payload is stored unchanged. Otherwise Encode() takes
  // multiples of this size; only the last piece may be shorter.
  virtual uint64_t unit_bytes() const = 0;
  // Digests the next piece, of any length.
  virtual void Digest(std::span<const std::byte> piece) = 0;
  // Fills `out`, as long as `piece`, with the stored form of the next piece.
  // Requires: unit_bytes() is not 0.
  virtual void Encode(std::span<const std::byte> piece,
                      std::span<std::byte> out) = 0;
  // Returns what frames need to know. Call after all pieces were digested and
  // encoded.
  virtual std::vector<std::byte> Finish() = 0;
};

// A Layout describes every byte of a file. Bytes that no payload or frame
// covers are zero.
//
// Threads: every method may be called from many threads at once.
class HAULWAY_EXPORT Layout {
 public:
  virtual ~Layout() = default;
  virtual uint64_t size() const = 0;
  // Both are sorted by offset, and nothing overlaps.
  virtual std::span<const Payload> payloads() const = 0;
  virtual std::span<const Frame> frames() const = 0;
  virtual Digesting digesting() const { return Digesting::kNone; }
  // Fills `out`, which is as long as the frame. `digests` holds what the frame
  // needs.
  virtual Status EncodeFrame(size_t frame, const Digests& digests,
                             std::span<std::byte> out) const = 0;
  // Starts an encoder; for kInOrder. Two encoders of one payload store the same
  // bytes.
  virtual std::unique_ptr<PayloadEncoder> Start(size_t /*payload*/) const {
    return nullptr;
  }
  // Calls Digest() of each encoder with the piece of the same number. Requires:
  // all encoders are of this layout.
  virtual void DigestTogether(
      std::span<PayloadEncoder* const> encoders,
      std::span<const std::span<const std::byte>> pieces) const {
    for (size_t i = 0; i < encoders.size(); ++i) encoders[i]->Digest(pieces[i]);
  }
  // Offset at which the file is split into two, for OpenSplitSink(); 0: not
  // split.
  virtual uint64_t split() const { return 0; }
};

// Opens a sink of two local files: the bytes before `split` go to `path`, the
// rest go to a new file `data_file` beside it, starting at its byte 0. The data
// file is committed first. Fails with kInvalidArgument if the data file exists
// or is what `path` leads to, and as OpenFileSink() does.
HAULWAY_EXPORT Result<std::unique_ptr<ByteSink>> OpenSplitSink(
    const std::string& path, const std::string& data_file, uint64_t split,
    const FileSinkOptions& options = {});

// Joins the layouts of archives to that of a data file, in which they follow
// one another without a gap. All must digest alike.
HAULWAY_EXPORT std::unique_ptr<const Layout> JoinLayouts(
    std::vector<std::unique_ptr<const Layout>> archives);

struct WriteOptions {
  int threads = 0;  // 0: as many as this process may use.
  // Called with the bytes done and the bytes to do, from one thread at a time
  // but not always the same thread.
  std::function<void(uint64_t done, uint64_t total)> progress = nullptr;
  const std::atomic<bool>* cancel = nullptr;  // Set to true to stop.
  // Limit for memory beside the caller's, for bytes that are copied or
  // encrypted before they are written. Fewer threads need less; a single thread
  // writes whatever the limit.
  uint64_t memory_budget = 256 * kMiB;
};

inline constexpr FieldTable kWriteOptionFields{

    Field("threads", &WriteOptions::threads, kThreadsMeaning,
          {.calls = "save convert writer commit", .most = kMostThreads}),
    Field("memory_budget", &WriteOptions::memory_budget,
          "limit for memory beside that of the tensors, for bytes that are "
          "copied, cast or encrypted before they are written; 0: as little as "
          "possible",
          {.calls = "save convert writer repair",
           .unit = Quantity::kBytes,
           .configured = false}),
};
constexpr const auto& FieldsOf(const WriteOptions&) {
  return kWriteOptionFields;
}

// Fields that LoadStats has too mean the same.
struct WriteStats {
  uint64_t bytes = 0;
  uint64_t tensor_bytes = 0;
  uint64_t written_bytes = 0;
  uint64_t copied_bytes = 0;
  uint64_t direct_bytes = 0;
  uint64_t requests = 0;
  int threads = 0;
  double seconds = 0;
  double allocate_seconds = 0;
  double digest_seconds = 0;
  double encode_seconds = 0;
  double write_seconds = 0;
  double commit_seconds = 0;
  bool direct = false;
};

inline constexpr FieldTable kWriteStatFields{
    Field("bytes", &WriteStats::bytes, "size of the file", Adding::kSum),
    Field("tensor_bytes", &WriteStats::tensor_bytes,
          "bytes of payloads before encoding, a pickle included", Adding::kSum),
    Field("written_bytes", &WriteStats::written_bytes,
          "bytes passed to the system, without holes", Adding::kSum),
    Field("copied_bytes", &WriteStats::copied_bytes,
          "part of written_bytes that the kernel copied from another file",
          Adding::kSum),
    Field("direct_bytes", &WriteStats::direct_bytes,
          "part of written_bytes that bypassed the page cache", Adding::kSum),
    Field("requests", &WriteStats::requests, "number of writes", Adding::kSum),
    Field("threads", &WriteStats::threads,
          "number of threads that digest and write", Adding::kLargest),
    Field("seconds", &WriteStats::seconds,
          "duration of the call, after the file was laid out", Adding::kSum),
    Field("allocate_seconds", &WriteStats::allocate_seconds,
          "time of creating the file and reserving space", Adding::kSum),
    Field("digest_seconds", &WriteStats::digest_seconds,
          "time of digesting; the times of digesting, encrypting and writing "
          "are summed over all threads, so they may exceed `seconds`",
          Adding::kSum),
    Field("encode_seconds", &WriteStats::encode_seconds, "time of encrypting",
          Adding::kSum),
    Field("write_seconds", &WriteStats::write_seconds, "time of writing",
          Adding::kSum),
    Field("commit_seconds", &WriteStats::commit_seconds,
          "time until the file was durable and visible", Adding::kSum),
    Field("direct", &WriteStats::direct,
          "true if any bytes bypassed the page cache", Adding::kLargest),
};
constexpr const auto& FieldsOf(const WriteStats&) { return kWriteStatFields; }

// Writes the whole file from many threads and commits it. An ordered sink is
// written by one thread; payloads of kInOrder are then digested twice, and
// payloads from sources are read twice. After a failure the sink is spent, and
// nothing has become visible.
HAULWAY_EXPORT Result<WriteStats> Write(const Layout& layout, ByteSink& sink,
                                        const WriteOptions& options = {});

// Copies all bytes of `source` to `sink` unchanged and commits the sink. Fails
// as the two do.
HAULWAY_EXPORT Result<WriteStats> Upload(const ByteSource& source,
                                         ByteSink& sink,
                                         const WriteOptions& options = {});

// A PlannedFile is a laid-out file whose holes are filled by others, in any
// order, from many threads and processes, before it becomes visible.
//
// Threads: Fill() may be called from many threads at once. Other processes
// write to temporary_path() at the offsets of the layout.
class HAULWAY_EXPORT PlannedFile {
 public:
  // Creates the file under a temporary name beside `path`, as long as the
  // layout and with the payloads that are known. If it is destroyed without
  // Commit(), no trace stays. Fails with kUnsupported for a layout that digests
  // in order.
  static Result<std::unique_ptr<PlannedFile>> Create(
      std::shared_ptr<const Layout> layout, std::string path,
      const FileSinkOptions& options = {});
  virtual ~PlannedFile() = default;

  virtual const std::string& temporary_path() const = 0;
  // Writes `bytes` to payload `payload`, `offset` bytes from its start. Fails
  // with kInvalidArgument if the range is outside the payload or the payload is
  // not a hole.
  virtual Status Fill(size_t payload, uint64_t offset,
                      std::span<const std::byte> bytes) = 0;
  // Reads the payloads back for their CRC-32 if the layout needs it, writes the
  // frames, and gives the file its name. Bytes that nobody filled are zero.
  // Requires: nobody writes any more. The statistics include bytes written by
  // Fill() in this process, not those written by other processes; `seconds` is
  // the time of this call.
  virtual Result<WriteStats> Commit(const WriteOptions& options = {}) = 0;
};

}  // namespace haulway
