// Design: containers grow in the tree's arena: lists by the batches that
// pickles have, and dicts with a separate hash table only above a number of
// items, because most dicts are small and faster to search linearly. A key that
// is set twice keeps its first position and takes the last value, as in Python.
// The total work of comparing keys is limited, so keys chosen to collide cost
// no more than others.
//
// Alternatives not taken: std::unordered_map allocates once per item; a table
// for every dict costs a small dict more than all its lookups. Capacity at
// least doubles when it grows, or fits exactly if all items come in one batch.

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <limits>
#include <system_error>

#include "base/text.h"
#include "pickle/pickle_machine.h"

namespace haulway::pickle {

namespace {

// Containers with at most this many keys are searched linearly.
constexpr size_t kFewKeys = 8;
constexpr uint64_t kNearMemo = 1024;

bool IsUnset(const Value& slot) {
  return slot.is(Kind::kTuple) && slot.identity() == nullptr;
}
Value Unset() {
  return Value::Of(Kind::kTuple, static_cast<Sequence*>(nullptr));
}

bool IsMutable(Kind kind) {
  return kind == Kind::kList || kind == Kind::kSet ||
         (kind >= Kind::kDict && kind <= Kind::kCounter);
}

// Returns whether the object is, or may be, a list or a dict: an instance of a
// class that the caller allowed, or of an unknown one.
bool TakesItems(const Value& value) {
  if (!value.is(Kind::kObject)) return false;
  const Global* callable = value.object().callable;
  if (callable == nullptr) return IsOpaque(value);
  const GlobalKind kind = KindOf(*callable);
  return callable->id == Global::kUnknown || kind == GlobalKind::kDefaultDict ||
         kind == GlobalKind::kDeque;
}

}  // namespace

std::string_view Describe(Kind kind) {
  switch (kind) {
    case Kind::kNone:
      return "None";
    case Kind::kBool:
      return "a bool";
    case Kind::kInt:
    case Kind::kBigInt:
      return "an int";
    case Kind::kFloat:
      return "a float";
    case Kind::kComplex:
      return "a complex";
    case Kind::kString:
    case Kind::kRawString:
      return "a str";
    case Kind::kBytes:
      return "bytes";
    case Kind::kByteArray:
      return "a bytearray";
    case Kind::kTuple:
      return "a tuple";
    case Kind::kList:
      return "a list";
    case Kind::kSet:
      return "a set";
    case Kind::kFrozenSet:
      return "a frozenset";
    case Kind::kDict:
      return "a dict";
    case Kind::kOrderedDict:
      return "an OrderedDict";
    case Kind::kCounter:
      return "a Counter";
    case Kind::kGlobal:
      return "a global";
    case Kind::kObject:
      return "an object";
    case Kind::kPersistent:
      return "a persistent id";
  }
  return "a value";
}

void Machine::GrowStack() {
  const auto top = top_ - stack_.data();
  const auto fence = fence_ - stack_.data();
  stack_.resize(stack_.size() * 2);
  heights_.resize(stack_.size());
  top_ = stack_.data() + top;
  fence_ = stack_.data() + fence;
  limit_ = stack_.data() + stack_.size();
}

uint16_t Machine::HeightOver(const Value* from) {
  uint16_t height = 0;
  for (; from != top_; ++from) height = std::max(height, HeightAt(from));
  if (height < kTallest) ++height;
  tallest_ = std::max(tallest_, height);
  return height;
}

void Machine::Raise(Value* target, uint16_t height) {
  uint16_t& known = heights_[static_cast<size_t>(target - stack_.data())];
  known = std::max(known, height);
}

Status Machine::Underflow(size_t expected) const {
  return Fail(
      Code::kCorrupt,
      fmt::format("stack underflow in {}: expected {} item{}, found {}",
                  op_name(), expected, expected == 1 ? "" : "s", available()));
}

void Machine::PushMark() {
  marks_.push_back(static_cast<uint32_t>(top_ - stack_.data()));
  fence_ = top_;
}

Status Machine::PopMark(Value** items) {
  if (marks_.empty()) {
    return Fail(Code::kCorrupt,
                fmt::format("{} without a MARK before it", op_name()));
  }
  *items = stack_.data() + marks_.back();
  marks_.pop_back();
  fence_ = stack_.data() + (marks_.empty() ? 0 : marks_.back());
  return {};
}

Status Machine::Pop() {
  if (available() > 0) {
    --top_;
    return {};
  }
  // As in Python, POP right after MARK removes the mark.
  if (marks_.empty()) return Underflow(1);
  Value* items = nullptr;
  return PopMark(&items);
}

Status Machine::PopToMark() {
  Value* items = nullptr;
  HAULWAY_TRY(PopMark(&items));
  top_ = items;
  return {};
}

Status Machine::Dup() {
  if (available() < 1) return Underflow(1);
  const Value value = top_[-1];
  const uint16_t height = HeightAt(top_ - 1);
  NoteShared(value);
  PushContainer(value, height);
  return {};
}

// Notes that a value is shared: changing it may change the depth of trees that
// the height bound does not see.
void Machine::NoteShared(const Value& value) {
  if (IsMutable(value.kind())) container_shared_ = true;
  if (!value.is(Kind::kObject)) return;
  if (shared_.empty()) {
    shared_.resize(static_cast<uint64_t>(end_ - begin_) / 64 + 1);
  }
  const uint64_t byte = value.object().byte;
  shared_[byte / 64] |= uint64_t{1} << byte % 64;
}

void Machine::NoteChange(const Value& target) {
  if (!target.is(Kind::kObject)) {
    must_measure_ |= container_shared_;
  } else if (!shared_.empty()) {
    const uint64_t byte = target.object().byte;
    must_measure_ |= (shared_[byte / 64] >> byte % 64 & 1) != 0;
  }
}

Status Machine::PutMemo(uint64_t index) {
  if (available() < 1) return Underflow(1);
  const Value value = top_[-1];
  const uint16_t height = HeightAt(top_ - 1);
  const bool is_new =
      index < memo_.size() ? IsUnset(memo_[index]) : !far_memo_.contains(index);
  if (is_new && ++memo_count_ > options_.limits.max_memo_entries) {
    return Fail(Code::kLimit,
                fmt::format("memo has more than max_memo_entries = {} entries",
                            options_.limits.max_memo_entries));
  }
  if (index >= memo_.size() && index < memo_.size() + kNearMemo / 16) {
    // Each memo entry takes at least one byte of input, except the skipped
    // entries, which are charged.
    HAULWAY_TRY(Charge((index - memo_.size()) * sizeof(Value)));
    while (memo_.size() < index) {
      const auto far = far_memo_.find(memo_.size());
      memo_.push_back(far == far_memo_.end() ? Unset() : far->second);
      memo_heights_.push_back(kTallest);
    }
    memo_.push_back(value);
    memo_heights_.push_back(height);
  } else if (index < memo_.size()) {
    memo_[index] = value;
    memo_heights_[index] = height;
  } else {
    far_memo_[index] = value;
  }
  return {};
}

Status Machine::GetMemo(uint64_t index) {
  Value value = Unset();
  uint16_t height = tallest_;
  if (index < memo_.size()) {
    value = memo_[index];
    height = memo_heights_[index];
  } else if (const auto far = far_memo_.find(index); far != far_memo_.end()) {
    value = far->second;
  }
  if (IsUnset(value)) {
    return Fail(Code::kCorrupt,
                fmt::format("{} of memo entry {}, which was never put",
                            op_name(), index));
  }
  // A container may have grown since it was memoized. An object without state
  // or items has not changed.
  NoteShared(value);
  if (IsMutable(value.kind()) ||
      (value.is(Kind::kObject) && (!value.object().state.is(Kind::kNone) ||
                                   value.object().extras != nullptr))) {
    height = tallest_;
  }
  PushContainer(value, std::min(height, tallest_));
  return {};
}

Status Machine::TextMemo(bool put) {
  std::string_view line;
  HAULWAY_TRY(ReadLine(&line));
  uint64_t index = 0;
  const char* end = line.data() + line.size();
  const auto [stop, error] = std::from_chars(line.data(), end, index);
  if (line.empty() || error != std::errc() || stop != end) {
    return Fail(Code::kCorrupt, fmt::format("{} argument {} is no memo index",
                                            op_name(), Quote(line)));
  }
  return put ? PutMemo(index) : GetMemo(index);
}

Status Machine::CheckItems(uint64_t count) const {
  const uint64_t most = std::min<uint64_t>(
      options_.limits.max_items, std::numeric_limits<uint32_t>::max() - 1);
  if (count <= most) return {};
  return Fail(Code::kLimit,
              fmt::format("{} makes a container of {} items: more than "
                          "max_items = {}",
                          op_name(), count, most));
}

Sequence* Machine::NewSequence(const Value* items, size_t count) {
  auto* memory = static_cast<std::byte*>(
      arena_.Allocate(sizeof(Sequence) + count * sizeof(Value)));
  auto* sequence = new (memory) Sequence();
  sequence->data = reinterpret_cast<Value*>(memory + sizeof(Sequence));
  sequence->size = static_cast<uint32_t>(count);
  sequence->capacity = static_cast<uint32_t>(count);
  std::uninitialized_copy_n(items, count, sequence->data);
  return sequence;
}

Status Machine::MakeTuple(size_t count) {
  if (available() < count) return Underflow(count);
  if (options_.limits.max_items < count) return CheckItems(count);
  Value* items = top_ - count;
  const uint16_t height = HeightOver(items);
  Sequence* tuple = NewSequence(items, count);
  top_ = items;
  PushContainer(Value::Of(Kind::kTuple, tuple), height);
  return {};
}

Status Machine::MakePersistent() {
  if (available() < 1) return Underflow(1);
  const uint16_t height = HeightOver(top_ - 1);
  const Value id = Value::Of(Kind::kPersistent, NewSequence(top_ - 1, 1));
  --top_;
  PushContainer(id, height);
  return {};
}

Status Machine::MakeFromMark(Kind kind) {
  Value* items = nullptr;
  HAULWAY_TRY(PopMark(&items));
  const auto count = static_cast<size_t>(top_ - items);
  HAULWAY_TRY(CheckItems(count));
  const uint16_t height = HeightOver(items);
  Value made;
  if (kind == Kind::kDict) {
    auto* mapping = arena_.New<Mapping>();
    if (count % 2 != 0) {
      return Fail(Code::kCorrupt,
                  fmt::format("{} has a key without a value", op_name()));
    }
    HAULWAY_TRY(SetPairs(mapping, items, count / 2));
    made = Value::Of(kind, mapping);
  } else if (kind == Kind::kFrozenSet) {
    auto* set = arena_.New<Sequence>();
    HAULWAY_TRY(AddToSet(set, items, count));
    made = Value::Of(kind, set);
  } else {
    made = Value::Of(kind, NewSequence(items, count));
  }
  top_ = items;
  PushContainer(made, height);
  return {};
}

Status Machine::Append() {
  if (available() < 2) return Underflow(2);
  HAULWAY_TRY(Extend(top_ - 2, top_ - 1, 1));
  --top_;
  return {};
}

Status Machine::Appends() {
  Value* items = nullptr;
  HAULWAY_TRY(PopMark(&items));
  if (items == fence_) {
    top_ = items;
    return Underflow(1);
  }
  HAULWAY_TRY(Extend(items - 1, items, static_cast<size_t>(top_ - items)));
  top_ = items;
  return {};
}

Status Machine::Extend(Value* target, const Value* items, size_t count) {
  const uint16_t height = HeightOver(items);
  NoteChange(*target);
  if (target->is(Kind::kList)) {
    Raise(target, height);
    return ExtendSequence(&target->sequence(), items, count);
  }
  if (TakesItems(*target)) {
    Raise(target, height);
    return ExtendSequence(&ExtrasOf(&target->object())->appended, items, count);
  }
  const bool data = target->kind() < Kind::kGlobal;
  const std::string what = fmt::format("{} to {}: expected a list", op_name(),
                                       Describe(target->kind()));
  return data ? Fail(Code::kCorrupt, what) : Refuse(what);
}

Status Machine::ReserveSequence(Sequence* list, size_t more) {
  const uint64_t size = uint64_t{list->size} + more;
  if (size <= list->capacity) return {};
  HAULWAY_TRY(CheckItems(size));
  // Most lists come in a single batch.
  const uint64_t grown =
      list->size == 0 ? more : std::max<uint64_t>(size, list->size * 2ULL);
  const auto capacity = static_cast<uint32_t>(std::min<uint64_t>(
      std::max<uint64_t>(grown, 2), std::numeric_limits<uint32_t>::max()));
  HAULWAY_TRY(Charge(0));
  auto* data =
      static_cast<Value*>(arena_.Allocate(size_t{capacity} * sizeof(Value)));
  std::uninitialized_copy_n(list->data, list->size, data);
  list->data = data;
  list->capacity = capacity;
  return {};
}

Status Machine::ExtendSequence(Sequence* list, const Value* items,
                               size_t count) {
  HAULWAY_TRY(ReserveSequence(list, count));
  HAULWAY_TRY(CheckItems(uint64_t{list->size} + count));
  std::uninitialized_copy_n(items, count, list->data + list->size);
  list->size += static_cast<uint32_t>(count);
  return {};
}

Status Machine::SetItem() {
  if (available() < 3) return Underflow(3);
  HAULWAY_TRY(Set(top_ - 3, top_ - 2, 1));
  top_ -= 2;
  return {};
}

Status Machine::SetItems() {
  Value* items = nullptr;
  HAULWAY_TRY(PopMark(&items));
  const auto count = static_cast<size_t>(top_ - items);
  if (items == fence_) {
    top_ = items;
    return Underflow(1);
  }
  if (count % 2 != 0) {
    return Fail(Code::kCorrupt, "SETITEMS has a key without a value");
  }
  HAULWAY_TRY(Set(items - 1, items, count / 2));
  top_ = items;
  return {};
}

Status Machine::Set(Value* target, const Value* pairs, size_t count) {
  const uint16_t height = HeightOver(pairs);
  NoteChange(*target);
  if (target->is_mapping()) {
    Raise(target, height);
    return SetPairs(&target->mapping(), pairs, count);
  }
  if (TakesItems(*target)) {
    Raise(target, height);
    return SetPairs(&ExtrasOf(&target->object())->items, pairs, count);
  }
  const bool data = target->kind() < Kind::kGlobal;
  const std::string what = fmt::format("{} on {}: expected a dict", op_name(),
                                       Describe(target->kind()));
  return data ? Fail(Code::kCorrupt, what) : Refuse(what);
}

Status Machine::ReserveMapping(Mapping* mapping, size_t more) {
  const uint64_t size = uint64_t{mapping->size} + more;
  if (size <= mapping->capacity) return {};
  HAULWAY_TRY(CheckItems(size));
  const uint64_t grown = mapping->size == 0
                             ? more
                             : std::max<uint64_t>(size, mapping->size * 2ULL);
  const auto capacity = static_cast<uint32_t>(
      std::min<uint64_t>(grown, std::numeric_limits<uint32_t>::max()));
  HAULWAY_TRY(Charge(0));
  auto* data = static_cast<MappingItem*>(
      arena_.Allocate(size_t{capacity} * sizeof(MappingItem)));
  std::uninitialized_copy_n(mapping->data, mapping->size, data);
  mapping->data = data;
  mapping->capacity = capacity;
  return {};
}

KeyTable* Machine::TableFor(const void* container, const Value* first,
                            size_t stride, size_t size, size_t more) {
  if (size + more <= kFewKeys) return nullptr;
  if (!tables_.empty()) {
    if (const auto kept = tables_.find(container); kept != tables_.end()) {
      return &kept->second;
    }
  }
  // If the container is filled at once or at least doubles, rebuilding a
  // scratch table is cheaper than keeping one.
  KeyTable* table = size <= more ? &scratch_ : &tables_[container];
  table->Reset(size + more);
  KeyBudget budget = MakeBudget();
  const auto* keys = reinterpret_cast<const std::byte*>(first);
  for (size_t i = 0; i < size; ++i) {
    const auto* key = reinterpret_cast<const Value*>(keys + i * stride);
    table->Add(*key, static_cast<uint32_t>(i), first, stride, seed_, &budget);
  }
  return table;
}

Status Machine::UnhashableOrLimit(const Value& key) const {
  return Fail(Code::kCorrupt,
              fmt::format("{} with an unhashable key: found {}", op_name(),
                          key.is(Kind::kTuple) ? "a tuple that holds one"
                                               : Describe(key.kind())));
}

KeyBudget Machine::MakeBudget() const {
  const uint64_t all = budget().bytes;
  const uint64_t used = std::min(tree_bytes(), all);
  return {(all - used) / sizeof(Value) + 1};
}

Status Machine::SpendBudget(const KeyBudget& before, const KeyBudget& after) {
  if (before.left == after.left && !after.exhausted) return {};
  if (after.exhausted) return Charge(budget().bytes + 1);
  return Charge((before.left - after.left) * sizeof(Value));
}

Status Machine::SetPairs(Mapping* mapping, const Value* pairs, size_t count) {
  if (count == 0) return {};
  HAULWAY_TRY(ReserveMapping(mapping, count));
  const KeyBudget before = MakeBudget();
  KeyBudget budget = before;
  KeyTable* table = TableFor(mapping, &mapping->data->key, sizeof(MappingItem),
                             mapping->size, count);
  for (size_t i = 0; i < count; ++i) {
    const Value& key = pairs[2 * i];
    if (!IsHashable(key, &budget)) {
      HAULWAY_TRY(SpendBudget(before, budget));
      return UnhashableOrLimit(key);
    }
    uint32_t place = mapping->size;
    if (table != nullptr) {
      const uint32_t found = table->Add(key, place, &mapping->data->key,
                                        sizeof(MappingItem), seed_, &budget);
      if (found != KeyTable::kNew) place = found;
    } else {
      for (uint32_t j = 0; j < mapping->size; ++j) {
        if (IsSameKey(mapping->data[j].key, key, &budget)) {
          place = j;
          break;
        }
      }
    }
    if (budget.exhausted) break;
    if (place == mapping->size) {
      mapping->data[place].key = key;
      ++mapping->size;
    }
    mapping->data[place].value = pairs[2 * i + 1];
  }
  return SpendBudget(before, budget);
}

Status Machine::AddItems() {
  Value* items = nullptr;
  HAULWAY_TRY(PopMark(&items));
  if (items == fence_) {
    top_ = items;
    return Underflow(1);
  }
  Value* target = items - 1;
  const uint16_t height = HeightOver(items);
  NoteChange(*target);
  if (!target->is(Kind::kSet)) {
    const std::string what =
        fmt::format("ADDITEMS to {}: expected a set", Describe(target->kind()));
    if (target->kind() < Kind::kGlobal) return Fail(Code::kCorrupt, what);
    HAULWAY_TRY(Refuse(what));
    top_ = items;
    return {};
  }
  Raise(target, height);
  HAULWAY_TRY(
      AddToSet(&target->sequence(), items, static_cast<size_t>(top_ - items)));
  top_ = items;
  return {};
}

Status Machine::AddToSet(Sequence* set, const Value* items, size_t count) {
  if (count == 0) return {};
  HAULWAY_TRY(ReserveSequence(set, count));
  const KeyBudget before = MakeBudget();
  KeyBudget budget = before;
  KeyTable* table = TableFor(set, set->data, sizeof(Value), set->size, count);
  for (size_t i = 0; i < count; ++i) {
    const Value& key = items[i];
    if (!IsHashable(key, &budget)) {
      HAULWAY_TRY(SpendBudget(before, budget));
      return UnhashableOrLimit(key);
    }
    bool known = false;
    if (table != nullptr) {
      known = table->Add(key, set->size, set->data, sizeof(Value), seed_,
                         &budget) != KeyTable::kNew;
    } else {
      for (uint32_t j = 0; j < set->size && !known; ++j) {
        known = IsSameKey(set->data[j], key, &budget);
      }
    }
    if (budget.exhausted) break;
    if (!known) set->data[set->size++] = key;
  }
  return SpendBudget(before, budget);
}

}  // namespace haulway::pickle
