// Writes pickles of protocol 2, byte for byte as CPython's pickler does.
//
// A PickleWriter appends opcodes and numbers what is memoized; walking the
// object, and deciding what to memoize, is the caller's. Each method names the
// save_*() of CPython whose bytes it writes.

#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "pickle/pickle_opcodes.h"

namespace haulway {

// A PickleMemo finds the number of an object by its address. Flat, and it
// only grows.
class PickleMemo {
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

class PickleWriter {
 public:
  // How many items Python puts between a MARK and its APPENDS or SETITEMS.
  static constexpr size_t kBatch = 1000;

  // Begins with PROTO 2.
  PickleWriter();

  // Writes the GET of an object that was put, or returns false.
  bool Get(const void* id) {
    const uint32_t number = memo_.Find(id);
    if (number == PickleMemo::kNone) return false;
    GetNumber(number);
    return true;
  }
  bool Has(const void* id) const { return memo_.Find(id) != PickleMemo::kNone; }
  uint32_t Find(const void* id) const { return memo_.Find(id); }
  void GetNumber(uint32_t number);
  // Memoizes what was written last. The address must stay that object's alone
  // until the pickle is complete. Requires: fewer than 2^32 - 1 are memoized.
  void Put(const void* id) {
    memo_.Add(id, memo_count_);
    PutUnshared();
  }
  // Put() for an object that will not be met again.
  void PutUnshared();
  uint32_t memo_count() const { return memo_count_; }

  void Op(pickle::Opcode opcode) {
    Room(1);
    *next_++ = static_cast<char>(opcode);
  }
  void None() { Op(pickle::kNone); }
  void Bool(bool value) { Op(value ? pickle::kNewTrue : pickle::kNewFalse); }
  void Int(int64_t value);
  // An integer of any size, two's complement, little-endian; need not be
  // minimal. Requires: fewer than 2^31 bytes.
  void BigInt(std::string_view bytes);
  void Float(double value);
  // UTF-8, lone surrogates as surrogatepass has them. Python memoizes every
  // string; that is left to the caller. Requires: fewer than 4 GiB.
  void Unicode(std::string_view text);
  // A Python 2 str, which Python 3 never writes. Requires: fewer than 2^31
  // bytes.
  void RawString(std::string_view bytes);
  // Under its Python 2 name if it has one; see Python2Name(). Not memoized.
  void Global(std::string_view module, std::string_view name);
  // The opcode that makes a tuple of `count` items. One of more than three
  // needs a MARK before its items; one of none is never memoized.
  void Tuple(size_t count);
  static bool TupleNeedsMark(size_t count) { return count > 3; }

  // Ends with STOP and hands over the bytes. No other call may follow.
  std::string Finish();
  size_t size() const { return static_cast<size_t>(next_ - bytes_.data()); }

 private:
  void Room(size_t count) {
    if (static_cast<size_t>(end_ - next_) < count) [[unlikely]] {
      Grow(count);
    }
  }
  void Grow(size_t count);
  // `opcode` and the number in one byte, or `wide` and it in four.
  void Numbered(pickle::Opcode opcode, pickle::Opcode wide, uint32_t number) {
    Room(5);
    if (number < 256) {
      next_[0] = static_cast<char>(opcode);
      next_[1] = static_cast<char>(number);
      next_ += 2;
    } else {
      next_[0] = static_cast<char>(wide);
      Store32(next_ + 1, number);
      next_ += 5;
    }
  }
  static void Store32(char* to, uint32_t value) {
    for (int i = 0; i < 4; ++i) to[i] = static_cast<char>(value >> (8 * i));
  }
  void Append(std::string_view text) {
    Room(text.size());
    std::memcpy(next_, text.data(), text.size());
    next_ += text.size();
  }

  std::string bytes_;  // As long as there is room; written up to next_.
  char* next_;
  char* end_;
  PickleMemo memo_;
  uint32_t memo_count_ = 0;
};

inline void PickleWriter::GetNumber(uint32_t number) {
  Numbered(pickle::kBinGet, pickle::kLongBinGet, number);
}

inline void PickleWriter::PutUnshared() {
  Numbered(pickle::kBinPut, pickle::kLongBinPut, memo_count_++);
}

}  // namespace haulway
