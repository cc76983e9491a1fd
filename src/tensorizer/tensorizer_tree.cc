#include "tensorizer/tensorizer_tree.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <unordered_map>

#include "base/name_index.h"
#include "base/text.h"
#include "tensorizer/tensorizer_name.h"

namespace haulway::tensorizer {

namespace {

constexpr uint32_t kNone = 0xFFFFFFFF;

// A step as a node stores it: a PathStep that does not own its key.
struct Step {
  bool is_position = false;
  uint64_t position = 0;
  std::string_view key;

  friend bool operator==(const Step&, const Step&) = default;
};

struct Place {
  uint32_t parent;
  Step step;

  friend bool operator==(const Place&, const Place&) = default;
};

struct PlaceHash {
  size_t operator()(const Place& place) const {
    const uint64_t step = place.step.is_position
                              ? Mix(place.step.position ^ seed, kMix1)
                              : HashText(place.step.key, seed);
    return Mix(step ^ place.parent, kMix2 ^ seed);
  }

  uint64_t seed = ProcessSeed();
};

struct Node {
  Step step;
  uint32_t tensor = kNone;
  uint32_t first_child = kNone;
  uint32_t last_child = kNone;
  uint32_t next = kNone;  // The next sibling.
  uint32_t children = 0;
};

class TreeMaker {
 public:
  TreeMaker(const std::vector<IndexEntry>& entries, const ParseLimits& limits,
            TreeArena* arena)
      : entries_(entries), limits_(limits), arena_(*arena) {}

  Result<NamedTree> Make() {
    nodes_.reserve(entries_.size() + 1);
    places_.reserve(entries_.size());
    nodes_.emplace_back();
    tree_.names.reserve(entries_.size());
    for (uint32_t i = 0; i < entries_.size(); ++i) {
      Status status = Add(i);
      if (!status.ok()) {
        return std::move(status).In(
            fmt::format("entry {} of the tensorizer index", i));
      }
    }
    if (structured_) HAULWAY_TRY(EscapeEqualNames());
    BuildValues();
    return std::move(tree_);
  }

 private:
  Status Add(uint32_t i) {
    const std::string_view name = entries_[i].name;
    uint32_t node = 0;
    if (!IsStructured(name)) {
      if (name.empty()) return Status(Code::kCorrupt, "name is empty");
      if (!IsUtf8(name)) {
        return Status(Code::kCorrupt,
                      fmt::format("name {} is not UTF-8", Quote(name)));
      }
      HAULWAY_ASSIGN(node, Child(0, {.key = name}));
      tree_.names.push_back(IsShown(name) ? name : arena_.Copy(Escape(name)));
    } else {
      structured_ = true;
      HAULWAY_ASSIGN(const Path path, ParseName(name, limits_.max_depth));
      for (const PathStep& step : path) {
        HAULWAY_ASSIGN(node, Child(node, {step.is_position, step.position,
                                          arena_.Copy(step.key)}));
      }
      tree_.names.push_back(arena_.Copy(Joined(path, /*escaped=*/false)));
    }
    if (nodes_[node].tensor != kNone || nodes_[node].children != 0) {
      return Status(Code::kCorrupt,
                    fmt::format("name {} stands twice, or is the start of "
                                "another",
                                Quote(name)));
    }
    nodes_[node].tensor = i;
    return Status();
  }

  static bool IsShown(std::string_view name) {
    return std::ranges::all_of(
        name, [](char c) { return c >= 0x20 && c < 0x7F && c != '\\'; });
  }

  Result<uint32_t> Child(uint32_t parent, const Step& step) {
    const auto next = static_cast<uint32_t>(nodes_.size());
    const auto [found, added] = places_.try_emplace({parent, step}, next);
    if (!added) return found->second;
    Node& above = nodes_[parent];
    if (above.tensor != kNone) {
      return Status(Code::kCorrupt, "name starts with that of another tensor");
    }
    if (above.last_child == kNone) {
      above.first_child = next;
    } else {
      Node& sibling = nodes_[above.last_child];
      if (sibling.step.is_position != step.is_position) {
        return Status(Code::kCorrupt,
                      "keys and positions stand in one container");
      }
      sibling.next = next;
    }
    above.last_child = next;
    ++above.children;
    nodes_.emplace_back().step = step;
    return next;
  }

  static std::string Joined(const Path& path, bool escaped) {
    std::string name;
    for (size_t i = 0; i < path.size(); ++i) {
      if (i > 0) name += '.';
      if (path[i].is_position) {
        name += fmt::format("{}{}", escaped ? "\\" : "", path[i].position);
      } else {
        name += Escape(path[i].key, escaped ? '.' : char{0});
      }
    }
    return name;
  }

  Status EscapeEqualNames() {
    NameIndex seen;
    const auto name_of = [&](uint32_t i) { return tree_.names[i]; };
    seen.Reserve(entries_.size());
    std::vector<bool> repeated(entries_.size());
    bool any = false;
    for (uint32_t i = 0; i < entries_.size(); ++i) {
      const uint32_t same = seen.Add(tree_.names[i], i, name_of);
      if (same == NameIndex::kNone) continue;
      repeated[i] = repeated[same] = any = true;
    }
    if (!any) return Status();
    for (uint32_t i = 0; i < entries_.size(); ++i) {
      if (!repeated[i]) continue;
      HAULWAY_ASSIGN(const Path path,
                     ParseName(entries_[i].name, limits_.max_depth));
      tree_.names[i] = arena_.Copy(Joined(path, /*escaped=*/true));
    }
    return Status();
  }

  // Builds the values from the last node to the first, because children come
  // after their parents.
  void BuildValues() {
    std::vector<Value> values(nodes_.size());
    for (uint32_t i = static_cast<uint32_t>(nodes_.size()); i-- > 0;) {
      const Node& node = nodes_[i];
      if (node.tensor != kNone) {
        auto* leaf = arena_.New<Object>();
        leaf->tensor = node.tensor;
        values[i] = Value::Of(leaf);
      } else {
        values[i] = Container(node, values);
      }
    }
    tree_.root = values[0];
  }

  Value Container(const Node& node, const std::vector<Value>& values) {
    std::vector<uint32_t> children;
    children.reserve(node.children);
    for (uint32_t child = node.first_child; child != kNone;
         child = nodes_[child].next) {
      children.push_back(child);
    }
    const auto position = [&](uint32_t child) {
      return nodes_[child].step.position;
    };
    const bool positions =
        node.first_child != kNone && nodes_[node.first_child].step.is_position;
    if (positions) std::ranges::sort(children, {}, position);
    const auto count = static_cast<uint32_t>(children.size());
    if (positions && position(children.back()) == count - 1) {
      auto* list = arena_.New<Sequence>();
      list->data = static_cast<Value*>(arena_.Allocate(count * sizeof(Value)));
      list->size = list->capacity = count;
      for (uint32_t c = 0; c < count; ++c) list->data[c] = values[children[c]];
      return Value::Of(Kind::kList, list);
    }
    auto* mapping = arena_.New<Mapping>();
    mapping->data =
        static_cast<MappingItem*>(arena_.Allocate(count * sizeof(MappingItem)));
    mapping->size = mapping->capacity = count;
    for (uint32_t c = 0; c < count; ++c) {
      const Step& step = nodes_[children[c]].step;
      mapping->data[c] = {positions
                              ? Value::Int(static_cast<int64_t>(step.position))
                              : Value::Text(Kind::kString, step.key),
                          values[children[c]]};
    }
    return Value::Of(Kind::kDict, mapping);
  }

  const std::vector<IndexEntry>& entries_;
  const ParseLimits& limits_;
  TreeArena& arena_;
  NamedTree tree_;
  std::vector<Node> nodes_;
  std::unordered_map<Place, uint32_t, PlaceHash> places_;
  bool structured_ = false;
};

}  // namespace

Result<NamedTree> BuildTree(const std::vector<IndexEntry>& entries,
                            const ParseLimits& limits, TreeArena* arena) {
  return TreeMaker(entries, limits, arena).Make();
}

}  // namespace haulway::tensorizer
