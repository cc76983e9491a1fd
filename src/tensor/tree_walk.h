// Visits the containers and objects of a tree.

#pragma once

#include <unordered_set>
#include <vector>

#include "haulway/tree.h"

namespace haulway {

// A TreeWalk hands out, each once and in no order, what was pushed to it: the
// caller pushes a root, and for each value the parts that it wants to see. Only
// containers, objects and persistent ids are handed out. Trees may be deep and
// may hold themselves.
class TreeWalk {
 public:
  void Push(const Value& value) {
    if (value.kind() >= Kind::kTuple && !value.is(Kind::kGlobal)) {
      pending_.push_back(value);
    }
  }
  void Push(const Mapping& mapping) {
    for (const MappingItem& item : mapping.items()) {
      Push(item.key);
      Push(item.value);
    }
    Push(mapping.state);
  }
  // Pushes what a sequence or mapping holds; nothing of other values.
  void PushItems(const Value& value) {
    if (value.is_sequence()) {
      for (const Value& item : value.sequence().items()) Push(item);
    } else if (value.is_mapping()) {
      Push(value.mapping());
    }
  }
  // Pushes what an object was given after its arguments, but for its state.
  void PushExtras(const Object& object) {
    if (object.extras == nullptr) return;
    Push(object.extras->kwargs);
    for (const Value& item : object.extras->appended.items()) Push(item);
    Push(object.extras->items);
  }

  // Returns whether there was a value that was not handed out before.
  bool Next(Value* value) {
    while (!pending_.empty()) {
      *value = pending_.back();
      pending_.pop_back();
      if (seen_.insert(value->identity()).second) return true;
    }
    return false;
  }

 private:
  std::vector<Value> pending_;
  std::unordered_set<const void*> seen_;
};

}  // namespace haulway
