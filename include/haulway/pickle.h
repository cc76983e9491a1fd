// Writing pickles: an object as torch.save describes it.
//
// WritePickle() writes a tree of plain data, in protocol 2. A PickleWriter is
// for objects that are no tree: it appends opcodes of protocols 2 to 5, byte
// for byte as CPython's pickler does, and numbers what is memoized; walking
// the object, and deciding what to memoize, is the caller's.
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

// Whether a pickle that names this global is data: whether it is loaded
// without the caller allowing it. The name is Python 3's.
HAULWAY_EXPORT bool IsDataGlobal(std::string_view module,
                                 std::string_view name);

// The name of a pickle opcode, "REDUCE"; empty for a byte that is none.
HAULWAY_EXPORT std::string_view PickleOpcodeName(uint8_t opcode);

struct PickleWriteOptions {
  uint32_t max_depth = ParseLimits().max_depth;
  // What to write in place of a kPersistent, a kObject or a dict, or nullopt to
  // write it as it is: how storages get new keys, tensors new offsets and dicts
  // new names. Must answer the same each time. May be empty.
  std::function<std::optional<Value>(const Value&)> replace;
};

// Writes `root` as torch.save writes such an object. Parsing the result gives
// an equal tree; shared references and cycles stay. A pickle that torch.save
// wrote comes back byte for byte, except where Python shared the text of a
// one-byte `bytes`. What protocol 2 has no word for (Python 2 strings,
// keywords of __new__) takes the opcode that does.
//
// Texts at one address are one string, as in a tree that was parsed.
//
// Fails with
//   kLimit        if the tree is deeper than max_depth, or a set or Counter
//                 holds itself so that Python could not write it either,
//   kUnsupported  for bytes of which the text form would pass 4 GiB, and a
//                 Python 2 string of 2 GiB.
HAULWAY_EXPORT Result<std::string> WritePickle(
    const Value& root, const PickleWriteOptions& options = {});

// A PickleMemo finds the number of an object by its address. Flat, and it
// only grows.
class HAULWAY_EXPORT PickleMemo {
 public:
  static constexpr uint32_t kNone = 0xFFFFFFFF;

  // The number of `id`, or kNone. Requires: `id` is not null.
  uint32_t Find(const void* id) const {
    if (slots_.empty()) return kNone;
    const Slot& slot = slots_[Probe(id)];
    return slot.id == nullptr ? kNone : slot.number;
  }
  // A number that `id` had before is replaced.
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

// A PickleWriter is one pickle being written. Each method writes one opcode,
// and names nothing that CPython does not: the order of calls is the pickle.
//
// From protocol 4 on pickles are cut into frames. CPython ends one only where
// an object begins, so this does: a method that begins an object, as Int() and
// EmptyList() do, may end a frame before it, one that goes on with what there
// is (Put(), Appends(), Reduce()) never does.
class HAULWAY_EXPORT PickleWriter {
 public:
  // How many items Python puts between a MARK and its APPENDS or SETITEMS.
  static constexpr size_t kBatch = 1000;
  static constexpr int kLeastProtocol = 2;
  static constexpr int kMostProtocol = 5;

  // Begins with PROTO. Requires: a protocol from 2 to 5.
  explicit PickleWriter(int protocol = kLeastProtocol);
  int protocol() const { return protocol_; }

  // Writes the GET of an object that was put, or returns false.
  bool Get(const void* id) {
    const uint32_t number = memo_.Find(id);
    if (number == PickleMemo::kNone) return false;
    BeginObject();
    GetNumber(number);
    return true;
  }
  bool Has(const void* id) const { return memo_.Find(id) != PickleMemo::kNone; }
  uint32_t Find(const void* id) const { return memo_.Find(id); }
  // Writes a GET in place of what was begun, as of a tuple that holds itself;
  // after BeginObject() of an object.
  void GetNumber(uint32_t number);
  // Ends a frame that is long enough. Requires: an object begins here.
  void BeginObject() {
    if (framed_ && size() - frame_ >= kFrameHead + kFrameTarget) [[unlikely]] {
      EndFrame();
      BeginFrame();
    }
  }
  // Memoizes what was written last. The address must stay that object's alone
  // until the pickle is complete. Requires: fewer than 2^32 - 1 are memoized.
  void Put(const void* id) {
    memo_.Add(id, memo_count_);
    PutUnshared();
  }
  // Put() for an object that will not be met again.
  void PutUnshared();
  uint32_t memo_count() const { return memo_count_; }

  void None() { Begin('N'); }
  void Bool(bool value) { Begin(value ? '\x88' : '\x89'); }
  void Int(int64_t value);
  // An integer of any size, two's complement, little-endian; need not be
  // minimal. Requires: fewer than 2^31 bytes.
  void BigInt(std::string_view bytes);
  void Float(double value);
  // UTF-8, lone surrogates as surrogatepass has them. Python memoizes every
  // string; that is left to the caller. Requires: fewer than 4 GiB below
  // protocol 4.
  void Unicode(std::string_view text);
  // Bytes. Requires: protocol 3, and fewer than 4 GiB below protocol 4.
  void Binary(std::string_view bytes);
  // Requires: protocol 5.
  void ByteArray(std::string_view bytes);
  // A Python 2 str, which Python 3 never writes. Requires: fewer than 2^31
  // bytes.
  void RawString(std::string_view bytes);
  // In protocol 2 under its Python 2 name if it has one: `__builtin__ set`.
  // From protocol 4 on its two names are memoized as strings of its own. The
  // global is not memoized.
  void Global(std::string_view module, std::string_view name);
  // The global of two names that were written last. Requires: protocol 4.
  void StackGlobal() { Op('\x93'); }
  // The opcode that makes a tuple of `count` items. One of more than three
  // needs BeginMarked() before its items; one of none is never memoized.
  void Tuple(size_t count);
  static bool TupleNeedsMark(size_t count) { return count > 3; }
  // The MARK that an object begins with: a tuple, a frozenset.
  void BeginMarked() { Begin('('); }

  // The others, named as in Python's pickletools.
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
  // Of protocol 4.
  void NewObjEx() { Op('\x92'); }
  void EmptySet() { Begin('\x8F'); }
  void AddItems() { Op('\x90'); }
  void FrozenSet() { Op('\x91'); }

  // Ends with STOP and hands over the bytes. No other call may follow.
  std::string Finish();
  size_t size() const { return static_cast<size_t>(next_ - bytes_.data()); }

 private:
  static constexpr size_t kFrameTarget = 64 * 1024;
  static constexpr size_t kFrameHead = 9;

  void Begin(char opcode) {
    BeginObject();
    Op(opcode);
  }
  void BeginFrame();
  void EndFrame();
  // One of three opcodes by how wide the length must be, the length and the
  // bytes. `narrow` may be 0: there is none. Long bytes stand between frames.
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
  // `opcode` and the number in one byte, or `wide` and it in four.
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

  std::string bytes_;  // As long as there is room; written up to next_.
  char* next_;
  char* end_;
  PickleMemo memo_;
  uint32_t memo_count_ = 0;
  const int protocol_;
  bool framed_ = false;
  size_t frame_ = 0;  // Where the frame that is open begins.
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
