// Making trees out of values that are elsewhere.

#pragma once

#include <algorithm>
#include <span>

#include "haulway/tree.h"

namespace haulway {

// A sequence of copies of `items`, in the arena's memory.
inline Sequence* CopyItems(TreeArena* arena, std::span<const Value> items) {
  auto* sequence = arena->New<Sequence>();
  sequence->data =
      static_cast<Value*>(arena->Allocate(items.size() * sizeof(Value)));
  std::ranges::copy(items, sequence->data);
  sequence->size = sequence->capacity = static_cast<uint32_t>(items.size());
  return sequence;
}

}  // namespace haulway
