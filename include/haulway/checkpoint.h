// One API over every checkpoint format.
//
// A checkpoint is an index over byte ranges. Opening one reads the index and
// no tensor; what it found is laid out in a CheckpointIndex. Tensors are then
// read one by one (Read, View) or many at once (load.h).
//
// Lifetime: everything an index refers to lives as long as its Checkpoint.
// Threads: a Checkpoint is immutable; use it from any number of threads.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "haulway/buffer.h"
#include "haulway/dtype.h"
#include "haulway/encryption.h"
#include "haulway/export.h"
#include "haulway/limits.h"
#include "haulway/long_vector.h"
#include "haulway/source.h"
#include "haulway/status.h"
#include "haulway/tree.h"

namespace haulway {

namespace tensorizer {
class Reader;
}

enum class Format : uint8_t {
  kTorch,        // The zip container of torch.save since 1.6.
  kTorchLegacy,  // Stacked pickles, torch 0.1.10 to 1.5.
  kTorchTar,     // torch up to 0.1.9.
  kTorchScript,  // TorchScript archives.
  kTorchPackage,
  kTensorizer,
  kSafetensors,
};
// The spelling in JSON: "torch", "torch-legacy", "torch-tar", "torchscript",
// "torch-package", "tensorizer", "safetensors".
HAULWAY_EXPORT std::string_view Name(Format format);

inline constexpr uint32_t kNoStorage = 0xFFFFFFFF;

enum class Encoding : uint8_t {
  kRaw,
  kDeflate,
  kEncrypted,  // Of the same length; may be decoded where it lies.
  kZeros,      // Nothing is stored: every byte is zero.
};

// Bytes that one or more tensors share, and where they lie in the source.
struct StorageInfo {
  std::string_view key;       // The format's name for it.
  std::string_view location;  // The device it was saved from: "cpu", "cuda:0".
  DType dtype = DType::kU8;   // What the file says its elements are.
  bool untyped = false;       // Saved as raw bytes; `dtype` is kU8 then.
  uint64_t nbytes = 0;        // In memory.
  // In the source. The frame is what surrounds the payload and must be
  // checked before the payload is trusted (a zip local header before it, a
  // data descriptor after it): it begins at frame_offset and ends at
  // frame_end. Without one, frame_offset == offset and frame_end is the end.
  uint64_t frame_offset = 0;
  uint64_t offset = 0;
  uint64_t stored_bytes = 0;
  uint64_t frame_end = 0;
  Encoding encoding = Encoding::kRaw;
  uint8_t swap_bytes = 1;  // 1, or the unit in which bytes must be reversed.
  std::optional<uint32_t> crc32;  // Of the bytes in memory before any swap.

  // What the bytes need in memory to be used where they are.
  uint64_t alignment() const {
    return untyped ? 16 : Describe(dtype).swap_bytes;
  }
};

enum class TensorKind : uint8_t {
  kDense,    // Elements of a storage, by offset, shape and strides.
  kMeta,     // A shape without data; with a storage, one of zeros.
  kStorage,  // A storage in its own right, seen as one dimension.
};

struct TensorInfo {
  TensorKind kind = TensorKind::kDense;
  DType dtype = DType::kU8;
  bool requires_grad = false;
  bool conjugate = false;         // The stored elements are to be conjugated,
  bool negative = false;          // or negated, when read as numbers.
  uint32_t storage = kNoStorage;  // Row of storages.
  uint64_t storage_offset = 0;    // In elements.
  std::span<const int64_t> shape;
  std::span<const int64_t> strides;  // In elements.
  uint64_t nbytes = 0;               // Product of shape times element size.
};

// A place in the object at which a tensor stands. Two entries may share a
// tensor (one object mentioned twice) or a storage (two views).
struct Entry {
  std::string_view name;  // Path joined by dots, unique in the checkpoint.
  uint32_t tensor;        // Row of tensors.
};

using FactValue =
    std::variant<std::monostate, bool, int64_t, uint64_t, std::string>;
struct Fact {
  std::string name;  // "version", "byteorder", "alignment", ...
  FactValue value;
};

// One of several files that make up a checkpoint.
struct Part {
  std::string_view name;  // As the checkpoint's own file spells it.
  uint64_t offset = 0;    // In the source, of its first byte.
  uint64_t bytes = 0;
};

struct CheckpointIndex {
  Format format = Format::kTorch;
  std::vector<Fact> facts;  // About the container, in order of interest.
  // What the writer noted about the content; nullopt if the format has no
  // place for that. In file order.
  std::optional<std::vector<Fact>> metadata;
  std::vector<Part> parts;  // By offset; empty if the source is one file.
  LongVector<Entry> entries;
  LongVector<TensorInfo> tensors;
  LongVector<StorageInfo> storages;
  // True if every storage's payload offset is known without reading its frame.
  bool offsets_computed = false;
  // The object is a dict of the tensors by name, as in formats that hold
  // nothing else; `root` is None then.
  bool flat = false;
  Value root;  // The whole object; Object::tensor numbers tensors.
};

// kStrict refuses everything on the list in docs/formats/torch.md; kLenient
// takes what PyTorch takes. Neither is less safe for memory than the other.
enum class Strictness : uint8_t { kStrict, kLenient };

struct OpenOptions {
  Strictness strictness = Strictness::kStrict;
  ParseLimits limits;
  // Names that may stand in a pickle beside those always allowed, as
  // "module.name". They are kept as data; nothing is imported.
  std::vector<std::string> allowed_globals;
  // What a file without a byteorder record is written in.
  bool big_endian_default = false;
  // Check every storage's frame now, in one vectored read, so that all
  // offsets in the index are proven; otherwise each is checked when read.
  bool check_frames = false;
  // Compare each computed payload offset with the one in its local header;
  // HAULWAY_SERIALIZATION_DEBUG=1 sets this in the command line and Python.
  bool debug_offsets = false;
  // For encrypted files. Without it their index can be read, their data not.
  EncryptionKey key;
  // Leave meta tensors of formats that load them as zeros without a storage.
  bool keep_meta = false;
};

// A digest of a payload that stands in its frame.
struct PayloadDigest {
  std::vector<std::byte> prefix;  // Covered too, before the payload.
  std::optional<uint32_t> crc32;
  std::optional<std::array<std::byte, 32>> sha256;
};

// Implemented by each format; used by the engine and by Checkpoint.
class HAULWAY_EXPORT FormatReader {
 public:
  virtual ~FormatReader() = default;
  virtual const CheckpointIndex& index() const = 0;
  virtual const std::shared_ptr<const ByteSource>& source() const = 0;

  // Checks what surrounds the payload of `storage`: `before` are the bytes
  // from frame_offset to offset, `after` those from the payload's end to
  // frame_end. Fails with kCorrupt if they contradict the index.
  virtual Status CheckFrame(uint32_t storage, std::span<const std::byte> before,
                            std::span<const std::byte> after) const = 0;

  // Turns stored bytes of an encoded storage into its bytes in memory, from
  // stored byte `offset` on: all of them, or whole units (UnitBytes). `frame`
  // is what CheckFrame() took as `before`. Requires: the encoding is kDeflate
  // or kEncrypted; only for the latter may `out` be the stored bytes
  // themselves. Fails with kCorrupt if they do not decode to that, and kAuth
  // if the key is missing or wrong.
  virtual Status Decode(uint32_t storage, std::span<const std::byte> frame,
                        uint64_t offset, std::span<const std::byte> stored,
                        std::span<std::byte> out) const = 0;

  // Of how many bytes, stored and decoded alike, a unit is that is decoded
  // apart from the others; 0: everything is one. Fails as CheckFrame() does.
  virtual Result<uint64_t> UnitBytes(uint32_t storage,
                                     std::span<const std::byte> frame) const;

  // Whether frames hold digests.
  virtual bool has_digests() const { return false; }
  // The digests of the decoded payload in its frame; where there are several,
  // one that matches will do. Fails as CheckFrame() does.
  virtual Result<std::vector<PayloadDigest>> Digests(
      uint32_t storage, std::span<const std::byte> before,
      std::span<const std::byte> after) const;

  // For the functions of haulway/tensorizer.h; null for other formats.
  virtual const tensorizer::Reader* AsTensorizer() const { return nullptr; }
};

class HAULWAY_EXPORT Checkpoint {
 public:
  // Reads the index. Detects the format from the bytes, never from the name.
  // Fails as the format's rules say, and as the source does.
  static Result<std::shared_ptr<const Checkpoint>> Open(
      std::shared_ptr<const ByteSource> source,
      const OpenOptions& options = {});
  // A local path, mapped. Open a source of your own for anything else.
  static Result<std::shared_ptr<const Checkpoint>> Open(
      std::string_view path, const OpenOptions& options = {});

  const CheckpointIndex& index() const { return reader_->index(); }
  const FormatReader& reader() const { return *reader_; }
  const ByteSource& source() const { return *reader_->source(); }

  const LongVector<Entry>& entries() const { return index().entries; }
  // The tensor of that name, or null.
  const TensorInfo* Find(std::string_view name) const;

  // Copies the elements, densely and in row-major order, into `out`. Elements
  // are as stored, in this machine's byte order: conjugate and negative are
  // the caller's to apply. Requires: out.size() == tensor.nbytes. Fails with
  // kInvalidArgument for a meta tensor, else as the source and frame do.
  Status Read(const TensorInfo& tensor, std::span<std::byte> out) const;

  // Part of a storage, in this machine's byte order. Fails with
  // kInvalidArgument past its end or where the range cuts an element that has
  // to be swapped, else as the source and frame do.
  Status ReadStorageRange(uint32_t storage, uint64_t offset,
                          std::span<std::byte> out) const;

  // All bytes of a storage, in place if the source has them in
  // memory and no transform is needed, else read into fresh memory.
  Result<Buffer> ReadStorage(uint32_t storage) const;

  // For formats of one's own. Requires: the index holds what it promises.
  explicit Checkpoint(std::unique_ptr<const FormatReader> reader);
  ~Checkpoint();

 private:
  struct Names;
  std::unique_ptr<const FormatReader> reader_;
  std::unique_ptr<Names> names_;
};

}  // namespace haulway
