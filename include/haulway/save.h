// Saving tensors by name, as a file of any writable format.
//
// TensorsToWrite describes what to write, for every format. The bytes of a
// tensor are the caller's memory, a range of a source, or produced on demand,
// so they need not all be in memory. Tensors that share memory are described as
// such, and formats that support shared storages keep them.
//
// Units: sizes and offsets are bytes unless a field says otherwise. Elements
// are in this machine's byte order.
//
// Save() takes all tensors at once. A TensorWriter takes them one after
// another, or in pieces.
//
// The lower part of this file is the interface between formats and the engine.
// A format lays out a file before any of it is written, as payloads and the
// frames between them (headers, directories); some frames hold digests of
// payloads. The engine, which knows no format, digests, encodes and writes from
// several threads while the bytes are in the processor's cache.

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "haulway/buffer.h"
#include "haulway/dtype.h"
#include "haulway/fields.h"
#include "haulway/index.h"
#include "haulway/options.h"
#include "haulway/sink.h"
#include "haulway/source.h"
#include "haulway/status.h"
#include "haulway/tree.h"

namespace haulway {

class Layout;

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

inline constexpr std::tuple kWriteOptionFields{

    Field("threads", &WriteOptions::threads, kThreadsMeaning,
          {.calls = "save convert writer commit", .most = kMostThreads}),
    Field("memory_budget", &WriteOptions::memory_budget,
          "limit for memory beside that of the tensors, for bytes that are "
          "copied, "
          "cast or encrypted before they are written; 0: as little as possible",
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

inline constexpr std::tuple kWriteStatFields{
    Field("bytes", &WriteStats::bytes, "size of the file", Adding::kSum),
    Field("tensor_bytes", &WriteStats::tensor_bytes,
          "bytes of payloads before encoding, a pickle included", Adding::kSum),
    Field("written_bytes", &WriteStats::written_bytes,
          "bytes passed to the system, without holes", Adding::kSum),
    Field("copied_bytes", &WriteStats::copied_bytes,
          "part of written_bytes that the kernel copied from another file",
          Adding::kSum),
    Field("requests", &WriteStats::requests, "number of writes", Adding::kSum),
    Field("threads", &WriteStats::threads,
          "number of threads that digest and write", Adding::kLargest),
    Field("seconds", &WriteStats::seconds,
          "duration of the call, after the file was laid out", Adding::kSum),
    Field("allocate_seconds", &WriteStats::allocate_seconds,
          "time of creating the file and reserving space", Adding::kSum),
    Field(
        "digest_seconds", &WriteStats::digest_seconds,
        "time of digesting; the times of digesting, encrypting and writing are "
        "summed over all threads, so they may exceed `seconds`",
        Adding::kSum),
    Field("encode_seconds", &WriteStats::encode_seconds, "time of encrypting",
          Adding::kSum),
    Field("write_seconds", &WriteStats::write_seconds, "time of writing",
          Adding::kSum),
    Field("commit_seconds", &WriteStats::commit_seconds,
          "time until the file was durable and visible", Adding::kSum),
    Field("direct", &WriteStats::direct,
          "true if the writes bypassed the page cache", Adding::kLargest),
};
constexpr const auto& FieldsOf(const WriteStats&) { return kWriteStatFields; }

// Bytes to write, and where they are. If `length` is 0, leave the other fields
// unset.
struct BytesToWrite {
  uint64_t length = 0;
  // In memory, unchanged until they are written. `owner` keeps them alive; null
  // if the caller does.
  const std::byte* bytes = nullptr;
  std::shared_ptr<const void> owner = nullptr;
  // If `bytes` is null: `length` bytes of this source, read in pieces while
  // they are written, from several threads at once. MakeProducedSource() makes
  // a source from a function.
  std::shared_ptr<const ByteSource> source = nullptr;
  uint64_t source_offset = 0;
};

// The part of a storage that a tensor is, as in StorageInfo and TensorInfo.
struct StorageView {
  uint32_t storage = 0;            // Row of TensorsToWrite::storages.
  uint64_t offset = 0;             // In elements, from the storage's start.
  std::vector<int64_t> strides{};  // In elements; none is negative.
};

struct TensorToWrite {
  std::string name{};
  DType dtype = DType::kU8;
  std::vector<int64_t> shape{};
  // All elements, dense and in row-major order; ignored if `view` is set.
  BytesToWrite bytes{};
  std::optional<StorageView> view = std::nullopt;
};

struct TensorsToWrite {
  // In file order, if the format keeps it.
  std::vector<TensorToWrite> tensors{};
  std::vector<BytesToWrite> storages{};  // The storages of views.
  // Text by key, for formats that store metadata. Some formats distinguish no
  // metadata (nullopt) from empty metadata.
  std::optional<std::vector<std::pair<std::string, std::string>>> metadata =
      std::nullopt;
  // Values of any kind by key, stored after `metadata`, for formats that
  // support them. A Fact's `type` says how a value is stored; if it is empty,
  // the smallest signed type that holds the value is used or, for a float, f32
  // if that is exact and f64 otherwise.
  std::vector<Fact> values{};
  // A dict or OrderedDict whose type and attributes (_metadata) are used for
  // the dict of tensors in a torch file; its items are ignored. Used by
  // LayOut() only; by default a plain dict.
  Value like{};
};

struct SaveOptions {
  WriteOptions write{};
  // Encrypts, in formats that support it. A passphrase becomes a key at
  // libsodium's moderate cost (256 MiB), with a new salt.
  EncryptionKey key{};
  // Payloads start at multiples of this; by default as the format's own library
  // does.
  std::optional<uint64_t> alignment = std::nullopt;
  // False leaves out the CRC-32, which is optional in torch's container.
  bool checksums = true;
  // The name of the file, which torch's container repeats inside.
  std::string path{};
};

inline constexpr std::tuple kSaveOptionFields{

    Field("alignment", &SaveOptions::alignment,
          "where tensors start: every offset is a multiple of this number of "
          "bytes. "
          "For 'safetensors' a multiple of 8, for 'gguf' a power of two (32 by "
          "default), for 'tensorizer' any number up to 1 MiB",
          {.calls = "save convert edit",
           .formats = "safetensors npz npy gguf tensorizer",
           .configured = false,
           .value_name = "BYTES"}),
    FieldsOfMember(&SaveOptions::key),
    FieldsOfMember(&SaveOptions::write),
};
constexpr const auto& FieldsOf(const SaveOptions&) { return kSaveOptionFields; }

// Makes a source of `size` bytes that `produce` returns, all at once, when the
// first of them is read. The bytes are freed when each was read once, and
// produced again if they are read again. `produce` is called by one thread at a
// time.
HAULWAY_EXPORT std::shared_ptr<const ByteSource> MakeProducedSource(
    uint64_t size, std::function<Result<Buffer>()> produce, std::string name);

// Lays out a file, for Write(). The layout keeps `tensors`. In a format without
// views, a view is written in full if no other tensor uses the same memory.
//
// Fails with kInvalidArgument for names that are equal or that the format
// cannot hold, bytes that do not match the shape, and views outside their
// storage; with kUnsupported for a read-only format, for dtypes, metadata or
// encryption that the format lacks, and for tensors that share memory if the
// format cannot express it.
HAULWAY_EXPORT Result<std::unique_ptr<const Layout>> LayOut(
    TensorsToWrite tensors, Format format, const SaveOptions& options = {});

// Lays out a file and writes it; it becomes visible only if all of it is
// written. Fails as LayOut() and Write() do.
HAULWAY_EXPORT Result<WriteStats> Save(TensorsToWrite tensors, Format format,
                                       ByteSink& sink,
                                       const SaveOptions& options = {});

// Returns the format for a file with this name: the one that its suffix names,
// regardless of case, or torch's for an unknown suffix. Fails with kUnsupported
// for the suffix of a read-only format, so that no file has a misleading name.
HAULWAY_EXPORT Result<Format> FormatToWrite(std::string_view path);

// Fails with kUnsupported if the path has the suffix of another format.
HAULWAY_EXPORT Status CheckEnding(std::string_view path, Format format);

// Returns the format with this name, as spelled by Name(). Fails with
// kUnsupported for an unknown or read-only format.
HAULWAY_EXPORT Result<Format> FormatToWriteByName(std::string_view name);

// Opens a path or URL for writing.
using SinkOpener = std::function<Result<std::unique_ptr<ByteSink>>(
    const std::string& uri, const FileSinkOptions& options)>;

struct TensorWriterOptions {
  // By default FormatToWrite(path).
  std::optional<Format> format = std::nullopt;
  // Maximum bytes of tensors in one file, as in ConvertOptions; 0: one file.
  uint64_t shard_bytes = 0;
  std::optional<std::vector<std::pair<std::string, std::string>>> metadata =
      std::nullopt;
  SaveOptions save{};  // `path` has no effect.
  Durability durability = Durability::kFull;
  SinkOpener open = nullptr;  // By default OpenSink() of haulway/open.h.
};

// The option `shard` of every struct that has one.
inline constexpr std::string_view kShardMeaning =
    "maximum bytes of tensors in one file, or a size like '5GB'. If one file "
    "is "
    "not enough, several are written, 'model-00001-of-00003.safetensors', and "
    "an index, named and split as huggingface_hub does. By default one file is "
    "written";
constexpr Option ShardOption(std::string_view calls) {
  return {.calls = calls,
          .unit = Quantity::kBytes,
          .least = 1,
          .configured = false};
}

inline constexpr std::tuple kTensorWriterOptionFields{

    Field("shard", &TensorWriterOptions::shard_bytes, kShardMeaning,
          ShardOption("writer")),
    Field("durability", &TensorWriterOptions::durability, kDurabilityMeaning,
          DurabilityOption("writer")),
    FieldsOfMember(&TensorWriterOptions::save),
};
constexpr const auto& FieldsOf(const TensorWriterOptions&) {
  return kTensorWriterOptionFields;
}

struct WrittenFiles {
  std::vector<std::string> files;  // If there is an index, it is last.
  WriteStats write;                // Sum over all files.
};

inline constexpr std::tuple kWrittenFilesFields{

    Field("files", &WrittenFiles::files, "files written; an index is last",
          Spelling::kPath),
    FieldsOfMember(&WrittenFiles::write),
};
constexpr const auto& FieldsOf(const WrittenFiles&) {
  return kWrittenFilesFields;
}

// A TensorWriter writes a model whose tensors arrive one after another, or in
// pieces.
//
// Added tensors wait in an unnamed file beside the target; Commit() turns it
// into the target, or into its shards and their index. So a model may be larger
// than memory, and the result is the same file that saving it at once would
// give. Until Commit() is done the disk may hold the tensors twice. Without
// Commit() no trace stays.
//
// Threads: Write() may be called from many threads at once, for different
// tensors and for parts of one tensor. No other method may run at the same
// time.
class HAULWAY_EXPORT TensorWriter {
 public:
  // Fails as FormatToWrite() and CheckEnding() do, and if no file can be made
  // beside `path`.
  static Result<std::unique_ptr<TensorWriter>> Open(
      std::string path, const TensorWriterOptions& options = {});
  virtual ~TensorWriter() = default;

  // Adds a dense tensor in row-major order. `bytes` may be reused on return.
  // Fails with kInvalidArgument for a name that was added before and for bytes
  // that do not match the shape, and as writing does.
  virtual Status Add(std::string_view name, DType dtype,
                     std::span<const int64_t> shape,
                     std::span<const std::byte> bytes) = 0;

  // Adds a tensor whose bytes follow by Write(), and returns its number.
  virtual Result<size_t> AddPart(std::string_view name, DType dtype,
                                 std::span<const int64_t> shape) = 0;
  // Writes bytes of such a tensor, `offset` bytes from its start, in any order.
  // Fails with kInvalidArgument if the range is outside the tensor.
  virtual Status Write(size_t tensor, uint64_t offset,
                       std::span<const std::byte> bytes) = 0;

  // Writes the files and makes them visible. Call once. Fails with
  // kInvalidArgument, naming the tensor, if bytes of a tensor are missing; as
  // LayOut() does for what the format cannot hold; and as writing does.
  virtual Result<WrittenFiles> Commit() = 0;
};

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
  // Offset at which the file is split into two, for MakeSplitSink(); 0: not
  // split.
  virtual uint64_t split() const { return 0; }
};

// Makes a sink of two files: the bytes before `split` go to `first`, the rest
// go to `second`, starting at its byte 0. `second` is committed first.
HAULWAY_EXPORT std::unique_ptr<ByteSink> MakeSplitSink(
    std::unique_ptr<ByteSink> first, std::unique_ptr<ByteSink> second,
    uint64_t split);

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
