#include "convert/object_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <unordered_set>

#include "base/text.h"
#include "torch/torch_tensors.h"

namespace haulway::convert {

namespace {

// A container, and the names of what it holds without their last part: empty,
// or with a dot at the end.
struct NamedValue {
  Value value;
  std::string path;
  std::string escaped;
};

class NameWalk {
 public:
  NameWalk(const CheckpointIndex& index, const NameEdits& edits,
           TreeArena* arena)
      : renamed_(edits.rename.begin(), edits.rename.end()),
        dropped_(edits.drop.begin(), edits.drop.end()),
        arena_(*arena) {
    for (const Entry& entry : index.entries) names_.insert(entry.name);
  }

  Status Run(const Value& root) {
    pending_.push_back({root, "", ""});
    while (!pending_.empty()) {
      const NamedValue place = std::move(pending_.back());
      pending_.pop_back();
      const Value& value = place.value;
      if (!value.is_mapping() && !value.is(Kind::kList) &&
          !value.is(Kind::kTuple)) {
        continue;
      }
      // A container's first path is in the names, so visit in their order.
      if (!visited_.insert(value.identity()).second) continue;
      const size_t first = pending_.size();
      if (value.is_mapping()) {
        HAULWAY_TRY(Visit(value, place));
      } else {
        const auto items = value.sequence().items();
        for (size_t i = 0; i < items.size(); ++i) {
          pending_.push_back({items[i], fmt::format("{}{}.", place.path, i),
                              fmt::format("{}{}.", place.escaped, i)});
        }
      }
      std::reverse(pending_.begin() + static_cast<ptrdiff_t>(first),
                   pending_.end());
    }
    for (const auto& [name, to] : renamed_) HAULWAY_TRY(CheckMet(name));
    for (const std::string& name : dropped_) HAULWAY_TRY(CheckMet(name));
    return Status();
  }

  std::unordered_map<const void*, Value> take() { return std::move(edited_); }

 private:
  Status CheckMet(std::string_view name) const {
    if (met_.contains(name)) return Status();
    return Status(Code::kUnsupported,
                  "the tensor is in no dict, so that its name cannot change")
        .In(Quote(name));
  }

  static bool IsTensor(const Value& value) {
    if (!value.is(Kind::kObject)) return value.is(Kind::kPersistent);
    const Object& object = value.object();
    // A parameter is an object that wraps a tensor.
    return object.tensor != Object::kNoTensor ||
           (object.callable != nullptr &&
            object.callable->name.starts_with("_rebuild_"));
  }
  static bool IsText(const Value& key) {
    return key.is(Kind::kString) || key.is(Kind::kRawString);
  }

  // Visits a dict.
  Status Visit(const Value& value, const NamedValue& place) {
    const Mapping& old = value.mapping();
    std::vector<MappingItem> items;
    std::set<std::string_view> keys;
    bool is_edited = false;
    for (const MappingItem& item : old.items()) {
      const std::string shown =
          place.path + torch::NamePart(item.key, /*escaped=*/false);
      const std::string escaped =
          place.escaped + torch::NamePart(item.key, /*escaped=*/true);
      // The escaped form is used where two names would be equal.
      const bool is_escaped = names_.contains(escaped);
      std::string name = is_escaped ? escaped : shown;
      // The outermost keys are names without escapes.
      if (place.path.empty() && item.key.is(Kind::kString) &&
          name == Escape(item.key.text())) {
        name = item.key.text();
      }
      pending_.push_back({item.value, shown + ".", escaped + "."});
      const bool is_tensor = IsTensor(item.value);
      MappingItem kept = item;
      if (is_tensor && dropped_.contains(name)) {
        met_.insert(name);
        is_edited = true;
        continue;
      }
      const auto renamed = renamed_.find(name);
      if (is_tensor && renamed != renamed_.end()) {
        if (!IsText(item.key)) {
          return Status(Code::kUnsupported,
                        "the tensor's key is not text, so that it cannot "
                        "change")
              .In(Quote(name));
        }
        met_.insert(name);
        is_edited = true;
        HAULWAY_ASSIGN(
            const std::string_view key,
            KeyOf(renamed->second, is_escaped ? place.escaped : place.path));
        kept.key = Value::Text(Kind::kString, arena_.Copy(key));
      }
      if (IsText(kept.key) && !keys.insert(kept.key.text()).second) {
        return Status(
            Code::kInvalidArgument,
            fmt::format("two tensors would be named {}",
                        Quote(place.path + std::string(kept.key.text()))));
      }
      items.push_back(kept);
    }
    if (!is_edited) return Status();
    auto* made = arena_.New<Mapping>();
    *made = old;
    made->data = static_cast<MappingItem*>(arena_.Allocate(
        std::max<size_t>(1, items.size()) * sizeof(MappingItem)));
    std::ranges::copy(items, made->data);
    made->size = made->capacity = static_cast<uint32_t>(items.size());
    edited_.emplace(value.identity(), Value::Of(value.kind(), made));
    return Status();
  }

  static Result<std::string_view> KeyOf(std::string_view name,
                                        std::string_view path) {
    if (name.starts_with(path) && name.size() > path.size()) {
      return name.substr(path.size());
    }
    return Status(Code::kUnsupported,
                  fmt::format("{} is not in the dict of the old name: expected "
                              "a name that begins with {}",
                              Quote(name), Quote(path)));
  }

  const std::map<std::string, std::string, std::less<>> renamed_;
  const std::set<std::string, std::less<>> dropped_;
  TreeArena& arena_;
  std::set<std::string, std::less<>> met_;
  std::unordered_set<std::string_view> names_;  // Those of the entries.
  std::vector<NamedValue> pending_;
  std::unordered_set<const void*> visited_;
  std::unordered_map<const void*, Value> edited_;
};

}  // namespace

Result<std::unordered_map<const void*, Value>> EditedDicts(
    const CheckpointIndex& index, const NameEdits& edits, TreeArena* arena) {
  NameWalk walk(index, edits, arena);
  HAULWAY_TRY(walk.Run(index.root));
  return walk.take();
}

}  // namespace haulway::convert
