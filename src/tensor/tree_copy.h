// Builds trees from existing values.

#pragma once

#include <algorithm>
#include <span>

#include "haulway/tree.h"

namespace haulway {

// Returns a sequence of copies of `items`, allocated in the arena.
inline Sequence* CopyItems(TreeArena* arena, std::span<const Value> items) {
  auto* sequence = arena->New<Sequence>();
  sequence->data =
      static_cast<Value*>(arena->Allocate(items.size() * sizeof(Value)));
  std::ranges::copy(items, sequence->data);
  sequence->size = sequence->capacity = static_cast<uint32_t>(items.size());
  return sequence;
}

}  // namespace haulway
