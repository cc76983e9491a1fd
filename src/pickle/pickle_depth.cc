#include "pickle/pickle_depth.h"

#include <algorithm>
#include <vector>

namespace haulway::pickle {

namespace {

bool IsContainer(const Value& value) {
  return value.is_sequence() || value.is_mapping() || value.is(Kind::kObject) ||
         value.is(Kind::kPersistent);
}

size_t ChildCount(const Value& value) {
  if (value.is_mapping()) return size_t{value.mapping().size} * 2 + 1;
  if (!value.is(Kind::kObject)) return value.sequence().size;
  const ObjectExtras* extras = value.object().extras;
  return 3 + (extras == nullptr
                  ? 0
                  : 1 + extras->appended.size + size_t{extras->items.size} * 2);
}

Value ChildOf(const Mapping& mapping, size_t index) {
  const MappingItem& item = mapping.data[index / 2];
  return index % 2 == 0 ? item.key : item.value;
}

// Returns a child. Requires: index < ChildCount(value).
Value ChildOf(const Value& value, size_t index) {
  if (value.is_mapping()) {
    const Mapping& mapping = value.mapping();
    return index == size_t{mapping.size} * 2 ? mapping.state
                                             : ChildOf(mapping, index);
  }
  if (!value.is(Kind::kObject)) return value.sequence().data[index];
  const Object& object = value.object();
  if (index == 0) return object.called;
  if (index == 1) return object.args;
  if (index == 2) return object.state;
  if (index == 3) return object.extras->kwargs;
  index -= 4;
  const Sequence& appended = object.extras->appended;
  if (index < appended.size) return appended.data[index];
  return ChildOf(object.extras->items, index - appended.size);
}

// A Numbering assigns numbers to containers by identity.
class Numbering {
 public:
  // Returns the number of `id`, and whether it is new.
  std::pair<uint32_t, bool> Add(const void* id) {
    if ((count_ + 1) * 2 > slots_.size()) Grow();
    Slot& slot = slots_[Find(id)];
    if (slot.id != nullptr) return {slot.number, false};
    slot = {id, count_};
    return {count_++, true};
  }

 private:
  struct Slot {
    const void* id = nullptr;
    uint32_t number = 0;
  };
  size_t Find(const void* id) const {
    const uint64_t hash =
        (reinterpret_cast<uintptr_t>(id) >> 4) * 0x9E3779B97F4A7C15;
    size_t at = (hash >> 20) & (slots_.size() - 1);
    while (slots_[at].id != nullptr && slots_[at].id != id) {
      at = (at + 1) & (slots_.size() - 1);
    }
    return at;
  }
  void Grow() {
    std::vector<Slot> old(slots_.empty() ? 64 : slots_.size() * 2);
    old.swap(slots_);
    for (const Slot& slot : old) {
      if (slot.id != nullptr) slots_[Find(slot.id)] = slot;
    }
  }

  std::vector<Slot> slots_;
  uint32_t count_ = 0;
};

// Tarjan's algorithm for strongly connected components, with an explicit stack.
struct Visit {
  Value value;
  size_t next_child = 0;
  uint32_t number;
  uint64_t below = 0;  // Maximum depth of the complete components below it.
};
struct Node {
  uint32_t lowest;  // Smallest number of a container that it can reach.
  // Depth of the component and all below; 0 until it is complete.
  uint64_t depth = 0;
};

}  // namespace

uint64_t MeasureDepth(const Value& root) {
  if (!IsContainer(root)) return 0;
  Numbering numbering;
  std::vector<Node> nodes;
  std::vector<Visit> visits;
  // Visited containers whose component is not complete.
  std::vector<uint32_t> open;

  const auto enter = [&](const Value& value, uint32_t number) {
    nodes.push_back({number});
    visits.push_back({value, 0, number});
    open.push_back(number);
  };
  enter(root, numbering.Add(root.identity()).first);
  uint64_t deepest = 0;
  while (!visits.empty()) {
    Visit& visit = visits.back();
    if (visit.next_child < ChildCount(visit.value)) {
      const Value child = ChildOf(visit.value, visit.next_child++);
      if (!IsContainer(child)) continue;
      const auto [number, is_new] = numbering.Add(child.identity());
      if (is_new) {
        enter(child, number);
      } else if (nodes[number].depth != 0) {
        visit.below = std::max(visit.below, nodes[number].depth);
      } else {
        nodes[visit.number].lowest =
            std::min(nodes[visit.number].lowest, number);
      }
      continue;
    }
    const Visit done = visit;
    visits.pop_back();
    const uint32_t lowest = nodes[done.number].lowest;
    // Whatever is below one container of a component is below all of them.
    uint64_t below = done.below;
    if (lowest == done.number) {
      const auto first =
          std::lower_bound(open.begin(), open.end(), done.number);
      const auto size = static_cast<uint64_t>(open.end() - first);
      const uint64_t depth = below + size;
      for (auto it = first; it != open.end(); ++it) nodes[*it].depth = depth;
      open.erase(first, open.end());
      below = depth;
      deepest = std::max(deepest, depth);
    }
    if (!visits.empty()) {
      Visit& parent = visits.back();
      parent.below = std::max(parent.below, below);
      nodes[parent.number].lowest =
          std::min(nodes[parent.number].lowest,
                   lowest == done.number ? parent.number : lowest);
    }
  }
  return deepest;
}

}  // namespace haulway::pickle
