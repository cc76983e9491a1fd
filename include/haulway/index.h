// What a checkpoint is: storages with places in a source, tensors over them,
// names, and the object in which they stand.
//
// Offsets and sizes are bytes unless a field says otherwise.
// Lifetime: views and spans live as long as the reader that made the index.
// Threads: an index is not changed once it is made.

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
#include "haulway/status.h"
#include "haulway/tree.h"

namespace haulway {

enum class Format : uint8_t {
  kTorch,        // The zip container of torch.save since 1.6.
  kTorchLegacy,  // Stacked pickles, torch 0.1.10 to 1.5.
  kTorchTar,     // torch up to 0.1.9.
  kTorchScript,  // TorchScript archives.
  kTorchPackage,
  kTensorizer,
  kSafetensors,
  kGguf,
  kNpy,  // One array.
  kNpz,  // A zip of them.
};

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

// Values of one kind.
using FactArray =
    std::variant<std::vector<bool>, std::vector<int64_t>, std::vector<uint64_t>,
                 std::vector<double>, std::vector<std::string>>;
using FactValue = std::variant<std::monostate, bool, int64_t, uint64_t,
                               std::string, double, FactArray>;
struct Fact {
  std::string name;  // "version", "byteorder", "alignment", ...
  FactValue value;
  // The format's name of the value's type, of an array's elements: "u32".
  // Empty where it has but one type for such values.
  std::string_view type = {};
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
  // Not ok if there are things in `root` that only code could make: kUnsafe,
  // of the first of them. Nobody may make the object then, but tensors can be
  // had as ever; what such a thing is called, and holds, is an Object whose
  // callable is null or not allowed.
  Status object_status;
};

// A digest of a payload that stands in its frame.
struct PayloadDigest {
  std::vector<std::byte> prefix;  // Covered too, before the payload.
  std::optional<uint32_t> crc32;
  std::optional<std::array<std::byte, 32>> sha256;
};

}  // namespace haulway
