// A hash table over strings that are stored elsewhere.

#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/hash.h"
#include "haulway/buffer.h"

namespace haulway {

// A NameIndex finds the number of a name. It stores hashes and numbers only.
// `name_of`, which every call takes, returns the name of a number and must be
// consistent. The table is flat, with eight bytes per slot.
class NameIndex {
 public:
  static constexpr uint32_t kNone = 0xFFFFFFFF;

  // Reserves room for `count` names, so that Add() does not grow the table.
  void Reserve(size_t count) {
    size_t slots = 16;
    while (slots < count * 2) slots *= 2;
    if (slots > slots_.size()) Rehash(slots);
  }

  // Returns the number of an equal name. If there is none, adds the name and
  // returns kNone.
  template <class NameOf>
  uint32_t Add(std::string_view name, uint32_t number, const NameOf& name_of) {
    return Add(name, Hash(name), number, name_of);
  }

  // For adding many names in a row: compute and prefetch each hash a few names
  // before adding it, since a large table is not in the processor's caches.
  // Requires: room is reserved.
  uint32_t Hash(std::string_view name) const {
    return static_cast<uint32_t>(HashText(name, seed_));
  }
  void Fetch(uint32_t hash) const {
    __builtin_prefetch(&slots_[hash & (slots_.size() - 1)], 1);
  }
  template <class NameOf>
  uint32_t Add(std::string_view name, uint32_t hash, uint32_t number,
               const NameOf& name_of) {
    if ((count_ + 1) * 2 > slots_.size()) {
      Rehash(slots_.empty() ? 16 : slots_.size() * 2);
    }
    Slot& slot = slots_[Probe(name, hash, name_of)];
    if (slot.number != kNone) return slot.number;
    slot = {hash, number};
    ++count_;
    return kNone;
  }

  template <class NameOf>
  uint32_t Find(std::string_view name, const NameOf& name_of) const {
    if (slots_.empty()) return kNone;
    return slots_[Probe(name, Hash(name), name_of)].number;
  }

 private:
  struct Slot {
    uint32_t hash = 0;
    uint32_t number = kNone;
  };

  template <class NameOf>
  size_t Probe(std::string_view name, uint32_t hash,
               const NameOf& name_of) const {
    const size_t mask = slots_.size() - 1;
    size_t at = hash & mask;
    while (slots_[at].number != kNone &&
           (slots_[at].hash != hash || name_of(slots_[at].number) != name)) {
      at = (at + 1) & mask;
    }
    return at;
  }
  void Rehash(size_t slots) {
    LongVector<Slot> old(slots);
    old.swap(slots_);
    const size_t mask = slots_.size() - 1;
    for (const Slot& slot : old) {
      if (slot.number == kNone) continue;
      size_t at = slot.hash & mask;
      while (slots_[at].number != kNone) at = (at + 1) & mask;
      slots_[at] = slot;
    }
  }

  uint64_t seed_ = ProcessSeed();
  LongVector<Slot> slots_;
  size_t count_ = 0;
};

}  // namespace haulway
