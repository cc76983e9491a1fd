// What a checkpoint contains: storages and where they lie in the source,
// tensors over them, names, and the object that holds the tensors.
//
// Offsets and sizes are bytes unless a field says otherwise.
// Lifetime: views and spans live as long as the reader that made the index.
// Threads: an index is immutable once it is made.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "haulway/buffer.h"
#include "haulway/dtype.h"
#include "haulway/sharding.h"
#include "haulway/status.h"
#include "haulway/tree.h"

namespace haulway {

enum class Format : uint8_t {
  kTorch,        // The zip container of torch.save since torch 1.6.
  kTorchLegacy,  // Stacked pickles: torch 0.1.10 to 1.5.
  kTorchTar,     // torch up to 0.1.9.
  kTorchScript,  // TorchScript archives.
  kTorchPackage,
  kTensorizer,
  kSafetensors,
  kGguf,
  kNpy,       // One array.
  kNpz,       // A zip of npy files.
  kTorchDcp,  // A directory of torch.distributed.checkpoint.
  // The shards of one in safetensors files.
  kSafetensorsDcp,
  // A version of weights: a checkpoint, and what changed since.
  kSafetensorsDelta,
  // The files of the processes of a training, of torch.distributed or of
  // DeepSpeed, in a folder.
  kTorchRanks,
  kDeepSpeed,
};

inline constexpr uint32_t kNoStorage = 0xFFFFFFFF;
inline constexpr uint32_t kNoSharding = 0xFFFFFFFF;

enum class Encoding : uint8_t {
  kRaw,
  kDeflate,
  kEncrypted,  // Same length as decoded; can be decoded in place.
  kZeros,      // Nothing is stored: every byte is zero.
  // The bytes of an older version, which the frame before them changes.
  kDelta,
};

// A run of bytes that one or more tensors share, and its place in the source.
struct StorageInfo {
  std::string_view key;       // The format's name for the storage.
  std::string_view location;  // Device it was saved from: "cpu", "cuda:0".
  DType dtype = DType::kU8;   // Element type that the file states.
  bool untyped = false;       // Saved as raw bytes; `dtype` is kU8 then.
  uint64_t nbytes = 0;        // Size in memory.
  // Places in the source. The frame surrounds the payload and must be checked
  // before the payload is trusted: for example, a zip local header before it
  // and a data descriptor after it. The frame begins at frame_offset and ends
  // at frame_end. Without a frame, frame_offset == offset and frame_end is the
  // end of the payload.
  uint64_t frame_offset = 0;
  uint64_t offset = 0;
  uint64_t stored_bytes = 0;
  uint64_t frame_end = 0;
  Encoding encoding = Encoding::kRaw;
  uint8_t swap_bytes = 1;  // 1, or the unit in which bytes must be reversed.
  // CRC-32 of the bytes in memory, before any byte swap.
  std::optional<uint32_t> crc32;

  // Returns the alignment that the bytes need to be used in place. PyTorch's
  // complex numbers need that of the whole item, not only of its parts.
  uint64_t alignment() const {
    if (untyped) return 16;
    const DTypeInfo& info = Describe(dtype);
    return info.kind == DTypeKind::kComplex ? info.item_bytes : info.swap_bytes;
  }
};

enum class TensorKind : uint8_t {
  kDense,    // Elements of a storage, by offset, shape and strides.
  kMeta,     // A shape without data; its storage, if any, is zeros.
  kStorage,  // A whole storage, seen as one dimension.
};

struct TensorInfo {
  TensorKind kind = TensorKind::kDense;
  DType dtype = DType::kU8;
  bool requires_grad = false;
  bool conjugate = false;  // The caller must conjugate the stored elements,
  bool negative = false;   // or negate them, to read them as numbers.
  uint32_t storage = kNoStorage;  // Row of storages.
  // Row of shardings, for what one process holds of a tensor.
  uint32_t sharding = kNoSharding;
  uint64_t storage_offset = 0;  // In elements.
  std::span<const int64_t> shape;
  std::span<const int64_t> strides;  // In elements.
  uint64_t nbytes = 0;               // Number of elements times element size.
};

// A place of a tensor in the object. Two entries may share a tensor (one object
// mentioned twice) or a storage (two views).
struct Entry {
  std::string_view name;  // The path, joined by dots; unique in the checkpoint.
  uint32_t tensor;        // Row of tensors.
};

// An array of values of one kind.
using FactArray =
    std::variant<std::vector<bool>, std::vector<int64_t>, std::vector<uint64_t>,
                 std::vector<double>, std::vector<std::string>>;
// A value of several parts, as JSON.
struct FactJson {
  std::string text;

  bool operator==(const FactJson&) const = default;
};
using FactValue = std::variant<std::monostate, bool, int64_t, uint64_t,
                               std::string, double, FactArray, FactJson>;
struct Fact {
  std::string name;  // "version", "byteorder", "alignment", ...
  FactValue value;
  // The type name that the format uses for the value or, for an array, for its
  // elements, e.g. "u32". Empty if the format has only one type for such
  // values.
  std::string_view type = {};
};

// One of several files that make up a checkpoint.
struct Part {
  std::string_view name;  // As spelled in the checkpoint's index file.
  uint64_t offset = 0;    // Offset of its first byte in the source.
  uint64_t bytes = 0;
};

struct CheckpointIndex {
  Format format = Format::kTorch;
  // Facts about the container, most interesting first.
  std::vector<Fact> facts;
  // Metadata that the writer stored, in file order; nullopt if the format has
  // no place for metadata.
  std::optional<std::vector<Fact>> metadata;
  // Sorted by offset; empty if the source is one file.
  std::vector<Part> parts;
  LongVector<Entry> entries;
  LongVector<TensorInfo> tensors;
  LongVector<StorageInfo> storages;
  std::vector<Sharding> shardings;
  std::vector<ProcessMesh> meshes;
  // True if the payload offset of every storage is known without reading its
  // frame.
  bool offsets_computed = false;
  // True if the object is a dict of tensors by name, as in formats that hold
  // nothing else; `root` is None then.
  bool flat = false;
  Value root;  // The whole object; Object::tensor is a row of tensors.
  // Not ok if `root` contains something that only code could make: kUnsafe,
  // with the first such thing. The object must not be made then, but its
  // tensors can still be read. Such a thing is kept, with its name and content,
  // as an Object whose callable is null or not allowed.
  Status object_status;
};

// A digest of a payload, stored in the frame of the payload.
struct PayloadDigest {
  // Bytes that the digest covers before the payload.
  std::vector<std::byte> prefix;
  std::optional<uint32_t> crc32;
  std::optional<std::array<std::byte, 32>> sha256;
};

}  // namespace haulway
