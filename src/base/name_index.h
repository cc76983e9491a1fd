// Finding names among many: a hash table over strings kept elsewhere.

#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

namespace haulway {

// A NameIndex maps strings to the numbers they were added with. It borrows
// the strings. One flat table, no allocation per name.
class NameIndex {
 public:
  static constexpr uint32_t kNone = 0xFFFFFFFF;

  // Makes room, so that Add() never has to grow the table.
  void Reserve(size_t count) {
    size_t slots = 16;
    while (slots < count * 2) slots *= 2;
    if (slots > slots_.size()) Rehash(slots);
  }

  // Returns the number `name` was added with earlier, or kNone after adding.
  uint32_t Add(std::string_view name, uint32_t number) {
    if ((count_ + 1) * 2 > slots_.size()) {
      Rehash(slots_.empty() ? 16 : slots_.size() * 2);
    }
    const uint32_t hash = Hash(name);
    Slot& slot = slots_[Probe(name, hash)];
    if (slot.number != kNone) return slot.number;
    slot = {name, hash, number};
    ++count_;
    return kNone;
  }

  uint32_t Find(std::string_view name) const {
    if (slots_.empty()) return kNone;
    return slots_[Probe(name, Hash(name))].number;
  }

 private:
  struct Slot {
    std::string_view name;
    uint32_t hash = 0;
    uint32_t number = kNone;
  };

  static uint32_t Hash(std::string_view name) {
    const size_t hash = std::hash<std::string_view>()(name);
    return static_cast<uint32_t>(hash ^ (hash >> 32));
  }
  size_t Probe(std::string_view name, uint32_t hash) const {
    const size_t mask = slots_.size() - 1;
    size_t at = hash & mask;
    while (slots_[at].number != kNone &&
           (slots_[at].hash != hash || slots_[at].name != name)) {
      at = (at + 1) & mask;
    }
    return at;
  }
  void Rehash(size_t slots) {
    std::vector<Slot> old(slots);
    old.swap(slots_);
    for (const Slot& slot : old) {
      if (slot.number != kNone) slots_[Probe(slot.name, slot.hash)] = slot;
    }
  }

  std::vector<Slot> slots_;
  size_t count_ = 0;
};

}  // namespace haulway
