// Equality of dict keys and set items, as Python has it.

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "haulway/tree.h"

namespace haulway::pickle {

// How many values, and 16 bytes of text, may still be looked at. Keys can share
// their parts, so a short pickle can make one that takes forever to walk.
struct KeyBudget {
  uint64_t left;
  bool exhausted = false;

  bool Spend(uint64_t cost = 1) {
    if (left < cost) {
      left = 0;
      exhausted = true;
      return false;
    }
    left -= cost;
    return true;
  }
};

// Whether Python could hash it: scalars, text, names, objects, and tuples and
// frozensets of those. False, too, when the budget ends.
bool IsHashable(const Value& key, KeyBudget* budget);

// Equal as dict keys: 1, 1.0 and True are one key. Objects, persistent ids
// and frozensets are equal to themselves only. Requires: both are hashable.
bool IsSameKey(const Value& a, const Value& b, KeyBudget* budget);

uint64_t HashKey(const Value& key, uint64_t seed, KeyBudget* budget);

// A KeyTable finds a key among the keys of one container. It keeps hashes and
// places; the keys stay where they are, at `first` and every `stride` bytes.
class KeyTable {
 public:
  static constexpr uint32_t kNew = 0xFFFFFFFF;

  // Empties it, and makes room for `count` keys.
  void Reset(size_t count);

  // The place of a key equal to `key`, or kNew after adding it as `place`.
  uint32_t Add(const Value& key, uint32_t place, const Value* first,
               size_t stride, uint64_t seed, KeyBudget* budget);

 private:
  void Grow();

  std::vector<uint64_t> slots_;  // Upper half of the hash, place + 1; or 0.
  size_t mask_ = 0;
  size_t count_ = 0;
};

}  // namespace haulway::pickle
