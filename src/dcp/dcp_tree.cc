#include "dcp/dcp_tree.h"

#include <fmt/format.h>

#include <unordered_map>

#include "base/hash.h"
#include "base/text.h"

namespace haulway::dcp {

namespace {

constexpr uint32_t kNone = 0xFFFFFFFF;
// Limit on list positions without an entry, in total.
constexpr uint64_t kMostUnfilled = 65536;

struct Step {
  uint32_t parent;
  bool is_position;
  int64_t position;
  std::string_view key;

  friend bool operator==(const Step&, const Step&) = default;
};

struct StepHash {
  size_t operator()(const Step& step) const {
    const uint64_t own =
        step.is_position
            ? Mix(static_cast<uint64_t>(step.position) ^ seed, kMix1)
            : HashText(step.key, seed);
    return Mix(own ^ step.parent, kMix2 ^ seed);
  }

  uint64_t seed = ProcessSeed();
};

struct Node {
  Step step;
  Value value;  // Set if is_leaf.
  bool is_leaf = false;
  bool is_list = false;
  int64_t last_position = -1;
  uint32_t first_child = kNone;
  uint32_t last_child = kNone;
  uint32_t next = kNone;
  uint32_t children = 0;
};

class Builder {
 public:
  explicit Builder(TreeArena* arena) : arena_(*arena) {}

  Result<Value> Build(std::span<const Leaf> leaves) {
    nodes_.reserve(leaves.size() + 1);
    children_.reserve(leaves.size());
    nodes_.emplace_back();
    for (const Leaf& leaf : leaves) {
      Status status = Add(leaf);
      if (!status.ok()) return std::move(status).In(Quote(leaf.name));
    }
    uint64_t unfilled = 0;
    for (const Node& node : nodes_) {
      if (!node.is_list) continue;
      unfilled += static_cast<uint64_t>(node.last_position) + 1 - node.children;
      if (unfilled > kMostUnfilled) {
        return Status(Code::kLimit,
                      fmt::format("lists of the state dict have more than {} "
                                  "places that nothing fills",
                                  kMostUnfilled));
      }
    }
    return Values();
  }

 private:
  Status Add(const Leaf& leaf) {
    uint32_t node = 0;
    if (leaf.path.empty()) {
      HAULWAY_ASSIGN(node, Child({0, false, 0, leaf.name}));
    }
    for (const Value& step : leaf.path) {
      const bool is_position = step.is(Kind::kInt);
      HAULWAY_ASSIGN(node,
                     Child({node, is_position, is_position ? step.integer() : 0,
                            is_position ? std::string_view() : step.text()}));
    }
    if (nodes_[node].is_leaf || nodes_[node].children != 0) {
      return Status(Code::kCorrupt,
                    "path of the entry leads where another one stands");
    }
    nodes_[node].is_leaf = true;
    nodes_[node].value = leaf.value;
    return Status();
  }

  Result<uint32_t> Child(const Step& step) {
    const auto next = static_cast<uint32_t>(nodes_.size());
    const auto [found, is_new] = children_.try_emplace(step, next);
    if (!is_new) return found->second;
    Node& parent = nodes_[step.parent];
    const bool is_root = step.parent == 0;
    if (parent.is_leaf || (is_root && step.is_position) || step.position < 0 ||
        step.position >= kNone ||
        (parent.children != 0 && parent.is_list != step.is_position)) {
      return Status(Code::kCorrupt,
                    "path of the entry contradicts that of another one");
    }
    parent.is_list = step.is_position;
    parent.last_position = std::max(parent.last_position, step.position);
    if (parent.first_child == kNone) {
      parent.first_child = next;
    } else {
      nodes_[parent.last_child].next = next;
    }
    parent.last_child = next;
    ++parent.children;
    nodes_.emplace_back().step = step;
    return next;
  }

  // Builds the values from the last node to the first, because children come
  // after their parents.
  Value Values() {
    for (uint32_t i = static_cast<uint32_t>(nodes_.size()); i-- > 0;) {
      Node& node = nodes_[i];
      if (node.is_leaf) continue;
      node.value = node.is_list ? ListOf(node) : DictOf(node);
    }
    return nodes_[0].value;
  }

  Value ListOf(const Node& node) {
    const auto count = static_cast<uint32_t>(node.last_position + 1);
    auto* list = arena_.New<Sequence>();
    list->data = static_cast<Value*>(arena_.Allocate(count * sizeof(Value)));
    list->size = list->capacity = count;
    std::uninitialized_fill_n(list->data, count, Value());
    for (uint32_t c = node.first_child; c != kNone; c = nodes_[c].next) {
      list->data[nodes_[c].step.position] = nodes_[c].value;
    }
    return Value::Of(Kind::kList, list);
  }

  Value DictOf(const Node& node) {
    auto* dict = arena_.New<Mapping>();
    dict->data = static_cast<MappingItem*>(
        arena_.Allocate(node.children * sizeof(MappingItem)));
    dict->size = dict->capacity = node.children;
    MappingItem* item = dict->data;
    for (uint32_t c = node.first_child; c != kNone; c = nodes_[c].next) {
      *item++ = {Value::Text(Kind::kString, nodes_[c].step.key),
                 nodes_[c].value};
    }
    return Value::Of(Kind::kDict, dict);
  }

  TreeArena& arena_;
  std::vector<Node> nodes_;
  std::unordered_map<Step, uint32_t, StepHash> children_;
};

}  // namespace

Result<Value> BuildStateDict(std::span<const Leaf> leaves, TreeArena* arena) {
  return Builder(arena).Build(leaves);
}

}  // namespace haulway::dcp
