#include "convert/object_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <unordered_set>

#include "base/text.h"

namespace haulway::convert {

namespace {

class Walk {
 public:
  Walk(const NameEdits& edits, TreeArena* arena)
      : renamed_(edits.rename.begin(), edits.rename.end()),
        dropped_(edits.drop.begin(), edits.drop.end()),
        arena_(*arena) {}

  Status Run(const Value& root) {
    pending_.emplace_back(root, "");
    while (!pending_.empty()) {
      const auto [value, path] = std::move(pending_.back());
      pending_.pop_back();
      if (!value.is_mapping() && !value.is(Kind::kList) &&
          !value.is(Kind::kTuple)) {
        continue;
      }
      if (!visited_.insert(value.identity()).second) continue;
      if (value.is_mapping()) {
        HAULWAY_TRY(Visit(value, path));
        continue;
      }
      const auto items = value.sequence().items();
      for (size_t i = 0; i < items.size(); ++i) {
        pending_.emplace_back(items[i], fmt::format("{}{}.", path, i));
      }
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

  // Visits a dict. `path` ends in a dot, or is empty.
  Status Visit(const Value& value, const std::string& path) {
    const Mapping& old = value.mapping();
    std::vector<MappingItem> items;
    std::set<std::string_view> keys;
    bool is_edited = false;
    for (const MappingItem& item : old.items()) {
      if (!item.key.is(Kind::kString)) {
        items.push_back(item);
        continue;
      }
      // The outermost keys are names without escapes.
      const std::string shown = path + Escape(item.key.text());
      const std::string name =
          path.empty() ? std::string(item.key.text()) : shown;
      pending_.emplace_back(item.value, shown + ".");
      const bool is_tensor = item.value.is(Kind::kObject) &&
                             item.value.object().tensor != Object::kNoTensor;
      MappingItem kept = item;
      if (is_tensor && dropped_.contains(name)) {
        met_.insert(name);
        is_edited = true;
        continue;
      }
      const auto renamed = renamed_.find(name);
      if (is_tensor && renamed != renamed_.end()) {
        met_.insert(name);
        is_edited = true;
        HAULWAY_ASSIGN(const std::string_view key,
                       KeyOf(renamed->second, path));
        kept.key = Value::Text(Kind::kString, arena_.Copy(key));
      }
      if (!keys.insert(kept.key.text()).second) {
        return Status(Code::kInvalidArgument,
                      fmt::format("two tensors would be named {}",
                                  Quote(path + std::string(kept.key.text()))));
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
  std::vector<std::pair<Value, std::string>> pending_;
  std::unordered_set<const void*> visited_;
  std::unordered_map<const void*, Value> edited_;
};

}  // namespace

Result<std::unordered_map<const void*, Value>> EditedDicts(
    const CheckpointIndex& index, const NameEdits& edits, TreeArena* arena) {
  Walk walk(edits, arena);
  HAULWAY_TRY(walk.Run(index.root));
  return walk.take();
}

}  // namespace haulway::convert
