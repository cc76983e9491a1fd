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

#pragma once

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
#include "haulway/layout.h"
#include "haulway/options.h"
#include "haulway/sink.h"
#include "haulway/source.h"
#include "haulway/status.h"
#include "haulway/tree.h"

namespace haulway {

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
  bool requires_grad = false;  // Kept by torch's files.
};

struct TensorsToWrite {
  // In file order, if the format keeps it.
  std::vector<TensorToWrite> tensors{};
  // Whether safetensors keeps the order too, and takes every alignment.
  bool in_order = false;
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

inline constexpr FieldTable kSaveOptionFields{

    Field("alignment", &SaveOptions::alignment,
          "where tensors start: every offset is a multiple of this number of "
          "bytes. For 'safetensors' a multiple of 8, for 'gguf' a power of two "
          "(32 by default), for 'tensorizer' any number up to 1 MiB",
          {.calls = "save convert edit",
           .formats = "safetensors gguf tensorizer",
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
    "is not enough, several are written, 'model-00001-of-00003.safetensors', "
    "and an index, named and split as huggingface_hub does. By default one "
    "file is written";
constexpr Option ShardOption(std::string_view calls) {
  return {.calls = calls,
          .unit = Quantity::kBytes,
          .least = 1,
          .configured = false};
}

inline constexpr FieldTable kTensorWriterOptionFields{

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

inline constexpr FieldTable kWrittenFilesFields{

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

}  // namespace haulway
