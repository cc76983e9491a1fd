// Compares dict keys and set items by Python's rules.

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "haulway/tree.h"

namespace haulway::pickle {

// A budget of values, and of 16-byte units of text, that may still be visited.
// Keys can share parts, so a short pickle can create a key that takes forever
// to walk.
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

// Returns whether Python could hash the key: scalars, text, names, objects, and
// tuples and frozensets of these. Returns false if the budget is exhausted.
bool IsHashable(const Value& key, KeyBudget* budget);

// Compares dict keys: 1, 1.0 and True are equal. Objects, persistent ids and
// frozensets are equal only to themselves. Requires: both are hashable.
bool IsSameKey(const Value& a, const Value& b, KeyBudget* budget);

uint64_t HashKey(const Value& key, uint64_t seed, KeyBudget* budget);

// A KeyTable finds a key among the keys of one container. It stores hashes and
// positions; the keys stay in place, at `first` and every `stride` bytes.
class KeyTable {
 public:
  static constexpr uint32_t kNew = 0xFFFFFFFF;

  // Clears the table and reserves room for `count` keys.
  void Reset(size_t count);

  // Returns the position of a key equal to `key`, or kNew after adding `key`
  // with position `place`.
  uint32_t Add(const Value& key, uint32_t place, const Value* first,
               size_t stride, uint64_t seed, KeyBudget* budget);

 private:
  void Grow();

  std::vector<uint64_t> slots_;  // Upper half of the hash and place + 1, or 0.
  size_t mask_ = 0;
  size_t count_ = 0;
};

}  // namespace haulway::pickle
