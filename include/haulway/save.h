// Saving: tensors by name as a file of any format that is written.
//
// There is one description of what to write, TensorsToWrite, for every format.
// The bytes of a tensor are the caller's memory, a range of a source, or made
// when they are asked for; so what is written need not be in memory, all of it
// or any of it. Tensors that share memory say so, and formats that can keep
// that do.
//
// Units: sizes and offsets are bytes unless a field says otherwise.
// Elements are in this machine's byte order.
//
// Save() is given all tensors at once; a TensorWriter, one after another or in
// pieces.
//
// Below stand what formats and engine share: a format lays out a file before
// any of it is written, as payloads and the frames between them (headers,
// directories), some of which hold digests of payloads; the engine, which knows
// no format, digests, encodes and writes from several threads, while the bytes
// are in cache.

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

inline constexpr Field<WriteStats> kWriteStatFields[] = {
    {"bytes", &WriteStats::bytes, "of the file", Adding::kSum},
    {"tensor_bytes", &WriteStats::tensor_bytes,
     "of payloads as the caller has them; a pickle is one too", Adding::kSum},
    {"written_bytes", &WriteStats::written_bytes,
     "handed to the system, without holes", Adding::kSum},
    {"copied_bytes", &WriteStats::copied_bytes,
     "of these, by the kernel from another file", Adding::kSum},
    {"requests", &WriteStats::requests, "writes", Adding::kSum},
    {"threads", &WriteStats::threads, "that digest and write",
     Adding::kLargest},
    {"seconds", &WriteStats::seconds, "of the call, once the file is laid out",
     Adding::kSum},
    {"allocate_seconds", &WriteStats::allocate_seconds,
     "making the file, and getting space for it", Adding::kSum},
    {"digest_seconds", &WriteStats::digest_seconds,
     "digesting; this, encrypting and writing are of all threads added up, so "
     "they may exceed `seconds`",
     Adding::kSum},
    {"encode_seconds", &WriteStats::encode_seconds, "encrypting", Adding::kSum},
    {"write_seconds", &WriteStats::write_seconds, "writing", Adding::kSum},
    {"commit_seconds", &WriteStats::commit_seconds,
     "until the file is durable and visible", Adding::kSum},
    {"direct", &WriteStats::direct,
     "whether it was written around the page cache", Adding::kLargest},
};
inline std::span<const Field<WriteStats>> FieldsOf(const WriteStats&) {
  return kWriteStatFields;
}

// Bytes to write, and where they are. Of no bytes, nothing need be set.
struct BytesToWrite {
  uint64_t length = 0;
  // In memory, unchanged until they are written. `owner` keeps them alive, if
  // they are not the caller's to keep.
  const std::byte* bytes = nullptr;
  std::shared_ptr<const void> owner = nullptr;
  // Else `length` bytes of this source, read piece by piece as they are
  // written, from several threads at once. MakeProducedSource() makes one of a
  // function.
  std::shared_ptr<const ByteSource> source = nullptr;
  uint64_t source_offset = 0;
};

// A tensor that is part of a storage, as in StorageInfo and TensorInfo.
struct StorageView {
  uint32_t storage = 0;            // Row of TensorsToWrite::storages.
  uint64_t offset = 0;             // In elements, from the storage's start.
  std::vector<int64_t> strides{};  // In elements; none is negative.
};

struct TensorToWrite {
  std::string name{};
  DType dtype = DType::kU8;
  std::vector<int64_t> shape{};
  // All elements, dense and in row-major order; of no effect with a view.
  BytesToWrite bytes{};
  std::optional<StorageView> view = std::nullopt;
};

struct TensorsToWrite {
  std::vector<TensorToWrite> tensors{};  // In the order of the file, if it can.
  std::vector<BytesToWrite> storages{};  // Those that views are of.
  // Text by key, of formats that have room for it; none and an empty one may
  // be told apart.
  std::optional<std::vector<std::pair<std::string, std::string>>> metadata =
      std::nullopt;
  // The same with values of any kind, behind `metadata`, of formats that keep
  // them. A Fact's `type` says how a value is written; without one that is the
  // smallest signed type that holds it, or f32 if it is exact, else f64.
  std::vector<Fact> values{};
  // The dict or OrderedDict that a file of torch holds the tensors in: it has
  // the same attributes (_metadata), but items of its own. Looked at by
  // LayOut() only; by default a dict.
  Value like{};
};

struct SaveOptions {
  WriteOptions write{};
  // Encrypts, in formats that can; a passphrase becomes a key at libsodium's
  // moderate cost (256 MiB), with a new salt.
  EncryptionKey key{};
  // Where payloads start, a multiple of this; by default as the format's own
  // library has it.
  std::optional<uint64_t> alignment = std::nullopt;
  // False leaves out the CRC-32 that torch's container may do without.
  bool checksums = true;
  // What the file will be called, which torch's container repeats inside.
  std::string path{};
};

// A source of `size` bytes that `produce` makes, all at once, when the first of
// them is asked for. They are let go when each was read once, and are made
// anew if they are asked for again. One call of `produce` at a time.
HAULWAY_EXPORT std::shared_ptr<const ByteSource> MakeProducedSource(
    uint64_t size, std::function<Result<Buffer>()> produce, std::string name);

// Lays out a file, for Write(); it keeps what it is given. A view of a format
// that has none is written in full if no other tensor is of the same memory.
//
// Fails with kInvalidArgument for names that are equal or that the format
// cannot hold, bytes that do not match the shape, and views that leave their
// storage; with kUnsupported for a format that is not written, dtypes,
// metadata and encryption that it lacks, and tensors that share memory where
// it cannot say so.
HAULWAY_EXPORT Result<std::unique_ptr<const Layout>> LayOut(
    TensorsToWrite tensors, Format format, const SaveOptions& options = {});

// Lays out a file and writes it: nothing is visible unless all is. Fails as
// LayOut() and Write() do.
HAULWAY_EXPORT Result<WriteStats> Save(TensorsToWrite tensors, Format format,
                                       ByteSink& sink,
                                       const SaveOptions& options = {});

// The format that a file of this name is written in: what its ending says,
// without regard to case, and torch's for an ending that means nothing. Fails
// with kUnsupported for the ending of a format that is not written, so that no
// file says what it is not.
HAULWAY_EXPORT Result<Format> FormatToWrite(std::string_view path);

// Fails with kUnsupported if the name ends as files of another format do.
HAULWAY_EXPORT Status CheckEnding(std::string_view path, Format format);

// The format of that name, as Name() spells it. Fails with kUnsupported for
// one that is not written.
HAULWAY_EXPORT Result<Format> FormatToWriteByName(std::string_view name);

// Opens what a path or URL names for writing.
using SinkOpener = std::function<Result<std::unique_ptr<ByteSink>>(
    const std::string& uri, const FileSinkOptions& options)>;

struct TensorWriterOptions {
  // By default what FormatToWrite() says of the path.
  std::optional<Format> format = std::nullopt;
  // Bytes of tensors in one file at most, as ConvertOptions has it; 0: one
  // file.
  uint64_t shard_bytes = 0;
  std::optional<std::vector<std::pair<std::string, std::string>>> metadata =
      std::nullopt;
  SaveOptions save{};  // `path` has no effect.
  Durability durability = Durability::kFull;
  SinkOpener open = nullptr;  // By default OpenSink() of haulway/open.h.
};

struct WrittenFiles {
  std::vector<std::string> files;  // The index, if there is one, is the last.
  WriteStats write;                // Of all files.
};

// A TensorWriter writes a model whose tensors come one after another, or in
// pieces.
//
// What is added waits in a file without a name beside the target; Commit()
// makes the target of it, or its shards and their index. So a model may be
// larger than memory, and the file is what saving all of it at once would be.
// The disk holds the tensors twice meanwhile. Without Commit() no trace stays.
//
// Threads: Write() may be called from many threads at once, for different
// tensors and for parts of one; the others not while any of them runs.
class HAULWAY_EXPORT TensorWriter {
 public:
  // Fails as FormatToWrite() and CheckEnding() do, and where no file can be
  // made beside `path`.
  static Result<std::unique_ptr<TensorWriter>> Open(
      std::string path, const TensorWriterOptions& options = {});
  virtual ~TensorWriter() = default;

  // Adds a dense tensor in row-major order, whose bytes are free for use again
  // on return. Fails with kInvalidArgument for a name that was added before
  // and bytes that do not match the shape, and as writing does.
  virtual Status Add(std::string_view name, DType dtype,
                     std::span<const int64_t> shape,
                     std::span<const std::byte> bytes) = 0;

  // Adds a tensor whose bytes come by Write(); gives its number.
  virtual Result<size_t> AddPart(std::string_view name, DType dtype,
                                 std::span<const int64_t> shape) = 0;
  // Writes bytes of such a tensor, `offset` from its start, in any order.
  // Fails with kInvalidArgument where they leave it.
  virtual Status Write(size_t tensor, uint64_t offset,
                       std::span<const std::byte> bytes) = 0;

  // Writes the files and makes them visible. Fails with kInvalidArgument,
  // and names the tensor, where bytes of one are missing, for what the format
  // cannot hold as LayOut() does, and as writing does. Once.
  virtual Result<WrittenFiles> Commit() = 0;
};

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

// Brings all bytes of `source` to `sink`, as they are, and makes them visible.
// Fails as the two do.
HAULWAY_EXPORT Result<WriteStats> Upload(const ByteSource& source,
                                         ByteSink& sink,
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
