// The object in a checkpoint, as plain data: nested dicts, lists, numbers,
// strings, and tensors by row.
//
// A Value is small and trivially copyable. Containers, strings and objects live
// in the TreeArena that they were made in, and a Value is valid as long as that
// arena (for a checkpoint: as long as the Checkpoint). Two Values with the same
// identity() are one object in the file, so shared references and cycles are
// kept.
//
// Nothing here is code. Where a pickle would call something, the tree holds an
// Object: the name of the callable, its arguments and its state.
//
// Threads: const access to a finished tree is safe from many threads.

#pragma once

#include <cassert>
#include <complex>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "haulway/buffer.h"
#include "haulway/status.h"

namespace haulway {

enum class Kind : uint8_t {
  kNone,
  kBool,
  kInt,     // Fits in int64_t.
  kBigInt,  // Two's complement, little-endian, as in the file.
  kFloat,
  kComplex,
  kString,     // UTF-8; lone surrogates as by Python's surrogatepass.
  kRawString,  // A Python 2 str: bytes of unknown encoding.
  kBytes,
  kByteArray,
  kTuple,
  kList,
  kSet,
  kFrozenSet,
  kDict,
  kOrderedDict,
  kCounter,
  kGlobal,      // A name: module and attribute. Never imported.
  kObject,      // The name of a callable, applied to arguments.
  kPersistent,  // A persistent id, not (yet) resolved by a format.
};

struct Sequence;
struct Mapping;
struct Global;
struct Object;

class HAULWAY_EXPORT Value {
 public:
  Value() : integer_(0) {}  // None
  static Value Bool(bool v) { return Value(Kind::kBool, 0, int64_t{v}); }
  static Value Int(int64_t v) { return Value(Kind::kInt, 0, v); }
  static Value Float(double v) {
    Value value(Kind::kFloat, 0, 0);
    value.real_ = v;
    return value;
  }
  // For kString, kRawString, kBytes, kByteArray, kBigInt. Borrows `bytes`.
  // Requires: fewer than 4 GiB.
  static Value Text(Kind kind, std::string_view bytes) {
    Value value(kind, static_cast<uint32_t>(bytes.size()), 0);
    value.text_ = bytes.data();
    return value;
  }
  // Borrows two doubles, real and imaginary.
  static Value Complex(const double* parts) {
    Value value(Kind::kComplex, 0, 0);
    value.parts_ = parts;
    return value;
  }
  // For kTuple, kList, kSet, kFrozenSet, and kPersistent (the id, followed by
  // the row of its storage once a format reader has resolved it).
  static Value Of(Kind kind, Sequence* sequence) {
    Value value(kind, 0, 0);
    value.sequence_ = sequence;
    return value;
  }
  // For kDict, kOrderedDict, kCounter.
  static Value Of(Kind kind, Mapping* mapping) {
    Value value(kind, 0, 0);
    value.mapping_ = mapping;
    return value;
  }
  static Value Of(Global* global) {
    Value value(Kind::kGlobal, 0, 0);
    value.global_ = global;
    return value;
  }
  static Value Of(Object* object) {
    Value value(Kind::kObject, 0, 0);
    value.object_ = object;
    return value;
  }

  Kind kind() const { return kind_; }
  bool is(Kind kind) const { return kind_ == kind; }
  bool is_sequence() const {
    return kind_ >= Kind::kTuple && kind_ <= Kind::kFrozenSet;
  }
  bool is_mapping() const {
    return kind_ >= Kind::kDict && kind_ <= Kind::kCounter;
  }

  // Each requires the kind that it reads.
  bool boolean() const { return integer_ != 0; }
  int64_t integer() const { return integer_; }
  double real() const { return real_; }
  std::complex<double> complex() const { return {parts_[0], parts_[1]}; }
  std::string_view text() const { return {text_, size_}; }
  Sequence& sequence() const { return *sequence_; }
  Mapping& mapping() const { return *mapping_; }
  Global& global() const { return *global_; }
  Object& object() const { return *object_; }
  const Value& persistent_id() const;
  // Returns the row of storages of a kPersistent that a format reader resolved.
  uint32_t persistent_storage() const;

  // Equal for two references to one container, global or object. Null for
  // scalars and strings, which have no identity.
  const void* identity() const {
    return kind_ >= Kind::kByteArray ? text_ : nullptr;
  }

 private:
  Value(Kind kind, uint32_t size, int64_t integer)
      : kind_(kind), size_(size), integer_(integer) {}

  Kind kind_ = Kind::kNone;
  uint32_t size_ = 0;
  union {
    int64_t integer_;
    double real_;
    const char* text_;
    const double* parts_;
    Sequence* sequence_;
    Mapping* mapping_;
    Global* global_;
    Object* object_;
  };
};
static_assert(sizeof(Value) == 16);

struct Sequence {
  Value* data = nullptr;
  uint32_t size = 0;
  uint32_t capacity = 0;

  std::span<const Value> items() const { return {data, size}; }
};

struct MappingItem {
  Value key;
  Value value;
};

// Items in file order. A key that is set twice keeps its first position and its
// last value, as in Python.
struct Mapping {
  MappingItem* data = nullptr;
  uint32_t size = 0;
  uint32_t capacity = 0;
  Value state;  // Attributes (an OrderedDict's _metadata), or None.

  std::span<const MappingItem> items() const { return {data, size}; }
  // Returns the value of a string key, or null. Takes linear time.
  HAULWAY_EXPORT const Value* Find(std::string_view key) const;
};

// A module and an attribute, as spelled in the file, after the renames that
// Python 2 needs. `id` is the row in the table of allowed names, or kUnknown.
struct Global {
  static constexpr uint16_t kUnknown = 0xFFFF;
  std::string_view module;
  std::string_view name;
  uint64_t byte = 0;  // Where the pickle first names it.
  uint16_t id = kUnknown;
  bool allowed = false;
};

// Fields that few objects have: items appended or set after construction (for a
// subclass of list or dict), and keyword arguments.
struct ObjectExtras {
  Value kwargs;  // A dict for NEWOBJ_EX, else None.
  Sequence appended;
  Mapping items;
};

struct Object {
  static constexpr uint32_t kNoTensor = 0xFFFFFFFF;
  Global* callable = nullptr;  // Null if the callable is not a name.
  Value called;                // The callable, in every case.
  Value args;                  // A tuple.
  Value state;                 // From BUILD, else None.
  ObjectExtras* extras = nullptr;
  uint64_t byte = 0;  // Offset of the opcode that made it.
  // The row of tensors, if a format reader resolved it to a tensor.
  uint32_t tensor = kNoTensor;
  bool is_new = false;  // cls.__new__(cls, *args), not cls(*args).
};

inline const Value& Value::persistent_id() const { return sequence_->data[0]; }
inline uint32_t Value::persistent_storage() const {
  assert(sequence_->size == 2);
  return static_cast<uint32_t>(sequence_->data[1].integer());
}

// A TreeArena is the memory of one tree. It only grows and is freed as a whole.
class HAULWAY_EXPORT TreeArena {
 public:
  TreeArena() = default;
  TreeArena(const TreeArena&) = delete;
  TreeArena& operator=(const TreeArena&) = delete;

  // Returns uninitialised memory, aligned for Value. Grows in blocks of at
  // least 64 KiB.
  void* Allocate(size_t bytes) {
    bytes = (bytes + 15) & ~size_t{15};
    if (bytes > left_) return AllocateSlow(bytes);
    void* memory = next_;
    next_ += bytes;
    left_ -= bytes;
    allocated_ += bytes;
    return memory;
  }
  // Gets this much more memory at once, in huge pages.
  void Reserve(size_t bytes);
  template <class T>
  T* New() {
    return new (Allocate(sizeof(T))) T();
  }
  // Returns a copy of `text` that lives as long as the arena.
  std::string_view Copy(std::string_view text);
  uint64_t allocated_bytes() const { return allocated_; }

 private:
  void* AllocateSlow(size_t bytes);
  std::byte* AddBlock(size_t bytes);

  std::vector<Buffer> blocks_;
  std::byte* next_ = nullptr;
  size_t left_ = 0;
  uint64_t allocated_ = 0;
};

}  // namespace haulway
