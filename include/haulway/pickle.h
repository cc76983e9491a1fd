// Writing pickles of objects as torch.save does.
//
// WritePickle() writes a tree of plain data in protocol 2. A PickleWriter is
// for objects that are not a tree: it appends opcodes of protocols 2 to 5, byte
// for byte as CPython's pickler does, and numbers memoized objects. The caller
// walks the object and decides what to memoize.
//
// Threads: one PickleWriter must not be used by two threads at a time.

#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "haulway/options.h"
#include "haulway/status.h"
#include "haulway/tree.h"

namespace haulway {

// Returns whether a pickle that names this global is data, that is, whether it
// is loaded without being allowed by the caller. The name is Python 3's.
HAULWAY_EXPORT bool IsDataGlobal(std::string_view module,
                                 std::string_view name);

// Returns the name of a pickle opcode, "REDUCE"; empty if the byte is not an
// opcode.
HAULWAY_EXPORT std::string_view PickleOpcodeName(uint8_t opcode);

struct PickleWriteOptions {
  uint32_t max_depth = ParseLimits().max_depth;
  // Returns a value to write in place of a kPersistent, a kObject or a dict, or
  // nullopt to write the value unchanged. It gives storages new keys, tensors
  // new offsets and dicts new names. Must return the same result for the same
  // value each time. May be empty.
  std::function<std::optional<Value>(const Value&)> replace;
};

// Writes `root` as torch.save writes such an object. Parsing the result gives
// an equal tree; shared references and cycles are kept. A pickle written by
// torch.save is reproduced byte for byte, except where Python shared the text
// of a one-byte `bytes`. A value that protocol 2 cannot express (Python 2
// strings, keywords of __new__) is written with the opcode of a later protocol.
//
// Texts at the same address are one string, as in a parsed tree.
//
// Fails with
//   kLimit        if the tree is deeper than max_depth, or a set or Counter
//                 contains itself so that Python could not write it either,
//   kUnsupported  for bytes whose text form would exceed 4 GiB, and a Python 2
//                 string of 2 GiB.
HAULWAY_EXPORT Result<std::string> WritePickle(
    const Value& root, const PickleWriteOptions& options = {});

// A PickleMemo maps the address of an object to its number. A flat hash table
// that only grows.
class HAULWAY_EXPORT PickleMemo {
 public:
  static constexpr uint32_t kNone = 0xFFFFFFFF;

  // Returns the number of `id`, or kNone. Requires: `id` is not null.
  uint32_t Find(const void* id) const {
    if (slots_.empty()) return kNone;
    const Slot& slot = slots_[Probe(id)];
    return slot.id == nullptr ? kNone : slot.number;
  }
  // Sets the number of `id`, replacing an earlier one.
  void Add(const void* id, uint32_t number) {
    if ((count_ + 1) * 2 > slots_.size()) Grow();
    Slot& slot = slots_[Probe(id)];
    if (slot.id == nullptr) ++count_;
    slot = {id, number};
  }

 private:
  struct Slot {
    const void* id = nullptr;
    uint32_t number = 0;
  };
  size_t Probe(const void* id) const {
    const size_t mask = slots_.size() - 1;
    const uint64_t hash = reinterpret_cast<uintptr_t>(id) * 0x9E3779B97F4A7C15;
    size_t at = (hash >> 24) & mask;
    while (slots_[at].id != nullptr && slots_[at].id != id) {
      at = (at + 1) & mask;
    }
    return at;
  }
  void Grow();

  std::vector<Slot> slots_;
  size_t count_ = 0;
};

// A PickleWriter writes one pickle. Each method writes one opcode and is named
// as in CPython: the order of the calls is the order of the opcodes.
//
// From protocol 4 on, pickles are divided into frames. CPython ends a frame
// only where an object begins, and so does this class: a method that begins an
// object, such as Int() or EmptyList(), may end a frame first; a method that
// continues an object (Put(), Appends(), Reduce()) never does.
class HAULWAY_EXPORT PickleWriter {
 public:
  // Number of items that Python puts between a MARK and its APPENDS or
  // SETITEMS.
  static constexpr size_t kBatch = 1000;
  static constexpr int kLeastProtocol = 2;
  static constexpr int kMostProtocol = 5;

  // Writes PROTO. Requires: a protocol from 2 to 5.
  explicit PickleWriter(int protocol = kLeastProtocol);
  int protocol() const { return protocol_; }

  // Writes a GET if `id` is memoized; otherwise returns false.
  bool Get(const void* id) {
    const uint32_t number = memo_.Find(id);
    if (number == PickleMemo::kNone) return false;
    BeginObject();
    GetNumber(number);
    return true;
  }
  bool Has(const void* id) const { return memo_.Find(id) != PickleMemo::kNone; }
  uint32_t Find(const void* id) const { return memo_.Find(id); }
  // Writes a GET in place of an object that was begun, such as a tuple that
  // contains itself. Call after BeginObject().
  void GetNumber(uint32_t number);
  // Ends the current frame if it is long enough. Requires: an object begins
  // here.
  void BeginObject() {
    if (framed_ && size() - frame_ >= kFrameHead + kFrameTarget) [[unlikely]] {
      EndFrame();
      BeginFrame();
    }
  }
  // Memoizes the object written last. Until the pickle is complete, the address
  // must belong to that object only. Requires: fewer than 2^32 - 1 objects are
  // memoized.
  void Put(const void* id) {
    memo_.Add(id, memo_count_);
    PutUnshared();
  }
  // Put() for an object that does not occur again.
  void PutUnshared();
  uint32_t memo_count() const { return memo_count_; }

  void None() { Begin('N'); }
  void Bool(bool value) { Begin(value ? '\x88' : '\x89'); }
  void Int(int64_t value);
  // Writes an integer of any size: two's complement, little-endian, not
  // necessarily minimal. Requires: fewer than 2^31 bytes.
  void BigInt(std::string_view bytes);
  void Float(double value);
  // Writes UTF-8 text; lone surrogates are encoded as by Python's
  // surrogatepass. Python memoizes every string; here the caller does.
  // Requires: fewer than 4 GiB below protocol 4.
  void Unicode(std::string_view text);
  // Writes bytes. Requires: protocol 3, and fewer than 4 GiB below protocol 4.
  void Binary(std::string_view bytes);
  // Requires: protocol 5.
  void ByteArray(std::string_view bytes);
  // Writes a Python 2 str, which Python 3 never writes. Requires: fewer than
  // 2^31 bytes.
  void RawString(std::string_view bytes);
  // Writes a global. Protocol 2 uses its Python 2 name if it has one:
  // `__builtin__ set`. From protocol 4 on, module and name are memoized as
  // strings; the global itself is not memoized.
  void Global(std::string_view module, std::string_view name);
  // Writes the global named by the two strings written last. Requires: protocol
  // 4.
  void StackGlobal() { Op('\x93'); }
  // Writes the opcode that makes a tuple of `count` items. A tuple of more than
  // three needs BeginMarked() before its items; an empty tuple is never
  // memoized.
  void Tuple(size_t count);
  static bool TupleNeedsMark(size_t count) { return count > 3; }
  // Writes the MARK that begins a tuple or a frozenset.
  void BeginMarked() { Begin('('); }

  // Other opcodes, named as in Python's pickletools.
  void Mark() { Op('('); }
  void Pop() { Op('0'); }
  void PopMark() { Op('1'); }
  void EmptyList() { Begin(']'); }
  void Append() { Op('a'); }
  void Appends() { Op('e'); }
  void EmptyDict() { Begin('}'); }
  void SetItem() { Op('s'); }
  void SetItems() { Op('u'); }
  void Reduce() { Op('R'); }
  void NewObj() { Op('\x81'); }
  void Build() { Op('b'); }
  void BinPersId() { Op('Q'); }
  // Opcodes of protocol 4.
  void NewObjEx() { Op('\x92'); }
  void EmptySet() { Begin('\x8F'); }
  void AddItems() { Op('\x90'); }
  void FrozenSet() { Op('\x91'); }

  // Ends with STOP and returns the bytes. No other call may follow.
  std::string Finish();
  size_t size() const { return static_cast<size_t>(next_ - bytes_.data()); }
  // Makes room for this many more bytes at once. More may be written.
  void Reserve(size_t count) { Room(count); }

 private:
  static constexpr size_t kFrameTarget = 64 * 1024;
  static constexpr size_t kFrameHead = 9;

  void Begin(char opcode) {
    BeginObject();
    Op(opcode);
  }
  void BeginFrame();
  void EndFrame();
  // Writes one of three opcodes, depending on the size of the length, then the
  // length and the bytes. `narrow` may be 0 if there is none. Long bytes are
  // written between frames.
  void Sized(char narrow, char wide, char widest, std::string_view bytes);
  void Op(char opcode) {
    Room(1);
    *next_++ = opcode;
  }
  void Room(size_t count) {
    if (static_cast<size_t>(end_ - next_) < count) [[unlikely]] {
      Grow(count);
    }
  }
  void Grow(size_t count);
  // Writes `opcode` and the number in one byte, or `wide` and the number in
  // four.
  void Numbered(char opcode, char wide, uint32_t number) {
    Room(5);
    if (number < 256) {
      next_[0] = opcode;
      next_[1] = static_cast<char>(number);
      next_ += 2;
    } else {
      next_[0] = wide;
      Store32(next_ + 1, number);
      next_ += 5;
    }
  }
  static void Store32(char* to, uint32_t value) {
    for (int i = 0; i < 4; ++i) to[i] = static_cast<char>(value >> (8 * i));
  }
  static void Store64(char* to, uint64_t value) {
    for (int i = 0; i < 8; ++i) to[i] = static_cast<char>(value >> (8 * i));
  }
  void Bytes(std::string_view text) {
    Room(text.size());
    std::memcpy(next_, text.data(), text.size());
    next_ += text.size();
  }

  std::string bytes_;  // Resized to the capacity; written up to next_.
  char* next_;
  char* end_;
  PickleMemo memo_;
  uint32_t memo_count_ = 0;
  const int protocol_;
  bool framed_ = false;
  size_t frame_ = 0;  // Start of the open frame.
};

inline void PickleWriter::GetNumber(uint32_t number) {
  Numbered('h', 'j', number);
}

inline void PickleWriter::PutUnshared() {
  if (framed_) {
    ++memo_count_;
    return Op('\x94');
  }
  Numbered('q', 'r', memo_count_++);
}

}  // namespace haulway
