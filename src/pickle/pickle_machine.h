// The inside of ParsePickle(): a stack, marks and a memo of Values.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "haulway/status.h"
#include "haulway/tree.h"
#include "pickle/pickle_keys.h"
#include "pickle/pickle_vm.h"

namespace haulway::pickle {

// "a list", "an object": for messages.
std::string_view Describe(Kind kind);

class Machine {
 public:
  Machine(std::span<const std::byte> bytes, TreeArena& arena,
          const PickleOptions& options, const GlobalTable& globals);

  Status Run();
  // Requires: Run() was called.
  PickleResult TakeResult(Status status);

 private:
  static constexpr size_t kMaxFindings = 1000;
  static constexpr size_t kFirstStack = 512;
  // The budget is looked at after so much of the pickle, and where an opcode
  // takes much at once.
  static constexpr ptrdiff_t kBudgetStep = 4096;
  // Heights above it are all the same to the quick bound on depth.
  static constexpr uint16_t kTallest = 0xFFFF;

  // --- pickle_vm.cc: dispatch and arguments.
  Status StepRare(uint8_t opcode);
  Status Finish();
  Status Proto();
  Status Frame();
  Status PushText(Kind kind, uint64_t length);
  Status PushLong(uint64_t length);
  Status PushTextLine(uint8_t opcode);
  Status PushFloat();
  Status ReadLine(std::string_view* line);
  template <class T>
  bool ReadFixed(T* value);
  Status TruncatedArgument(uint64_t needs) const;

  // --- pickle_stack.cc: stack, marks, memo and containers.
  void GrowStack();
  size_t available() const { return static_cast<size_t>(top_ - fence_); }
  void Push(const Value& value) {
    if (top_ == limit_) [[unlikely]] {
      GrowStack();
    }
    *top_++ = value;
  }
  void PushContainer(const Value& value, uint16_t height) {
    Push(value);
    heights_[static_cast<size_t>(top_ - stack_.data()) - 1] = height;
  }
  // The height of the value at `slot`: 0 for scalars, 1 for a container of
  // scalars.
  uint16_t HeightAt(const Value* slot) const {
    const Kind kind = slot->kind();
    return kind < Kind::kTuple || kind == Kind::kGlobal
               ? 0
               : heights_[static_cast<size_t>(slot - stack_.data())];
  }
  // One more than the highest of [from, top_).
  uint16_t HeightOver(const Value* from);
  void Raise(Value* target, uint16_t height);

  Status Underflow(size_t expected) const;
  void PushMark();
  // Removes the last mark; `*items` is the first value above it.
  Status PopMark(Value** items);
  Status Pop();
  Status PopToMark();
  Status Dup();
  Status PutMemo(uint64_t index);
  Status GetMemo(uint64_t index);
  Status TextMemo(bool put);

  Status MakeTuple(size_t count);
  Status MakePersistent();
  Status MakeFromMark(Kind kind);  // kTuple, kList, kFrozenSet, kDict
  Sequence* NewSequence(const Value* items, size_t count);
  Status Append();
  Status Appends();
  Status SetItem();
  Status SetItems();
  Status AddItems();
  Status Extend(Value* target, const Value* items, size_t count);
  Status ExtendSequence(Sequence* list, const Value* items, size_t count);
  // `pairs` are keys and values in turn.
  Status Set(Value* target, const Value* pairs, size_t count);
  Status SetPairs(Mapping* mapping, const Value* pairs, size_t count);
  Status AddToSet(Sequence* set, const Value* items, size_t count);
  Status ReserveSequence(Sequence* list, size_t more);
  Status ReserveMapping(Mapping* mapping, size_t more);
  Status CheckItems(uint64_t count) const;
  // The table of a container that is filled in more than one go, or null if
  // its few keys are better compared in turn.
  KeyTable* TableFor(const void* container, const Value* first, size_t stride,
                     size_t size, size_t more);
  Status UnhashableOrLimit(const Value& key) const;
  void NoteChange(const Value& target);
  void NoteShared(const Value& value);

  // --- pickle_reduce.cc: names, and what calls mean.
  // The Global for a name; notes the mention.
  Status MeetGlobal(std::string_view module, std::string_view name,
                    std::string_view key, Value* global);
  // The two lines of GLOBAL and INST.
  Status ReadGlobal(Value* global);
  Status StackGlobal();
  Status Reduce();
  Status NewObj(bool keywords);
  Status Obj();
  Status Inst();
  // The items above the last mark as arguments, and what they are for.
  Status ApplyToMark(const Value& callee, Value* items, Value* place);
  // What `callee` applied to `args`, a tuple, means. `*height` is that of
  // `args` before, and of the result after.
  Status Apply(const Value& callee, const Value& args, const Value& kwargs,
               bool is_new, Value* result, uint16_t* height);
  // A call of plain data.
  Status ApplyPlain(GlobalKind kind, const Value& args, Value* result);
  Status ApplySequence(Kind kind, const Value& args, Value* result);
  Status ApplyMapping(Kind kind, const Value& args, Value* result);
  Status ApplyBytes(Kind kind, const Value& args, Value* result);
  Status ApplyComplex(const Value& args, Value* result);
  Status BadArguments() const;
  Status Build();
  // The class that a persistent id ('module', class, file, source) means, as
  // torch up to 1.5 wrote classes of modules; else null.
  static Global* ModuleClass(const Value& callee);
  // Attributes that will be set: none may be a special one of Python.
  Status NoteState(const Value& state);
  Status CheckState(const Value& state);
  Status CheckStateKeys(const Value& state);
  ObjectExtras* ExtrasOf(Object* object);

  // --- Failing.
  uint64_t op_byte() const { return static_cast<uint64_t>(op_ - begin_); }
  std::string_view op_name() const;
  Status Fail(Code code, std::string_view what) const;
  // Something unsafe: fails, or when scanning notes it and returns ok.
  Status Refuse(std::string_view what);
  // The same of something opaque, which may be kept.
  Status RefuseOpaque(std::string_view what);
  // Counts memory or time that an opcode takes beyond its own size.
  Status Charge(uint64_t bytes);
  uint64_t tree_bytes() const {
    constexpr uint64_t kSlotBytes = sizeof(Value) + sizeof(uint16_t);
    return arena_.allocated_bytes() - arena_start_ + charged_ +
           (stack_.size() - kFirstStack + memo_.size()) * kSlotBytes;
  }
  TreeBudget budget() const;
  KeyBudget MakeBudget() const;
  Status SpendBudget(const KeyBudget& before, const KeyBudget& after);

  const PickleOptions& options_;
  const GlobalTable& globals_;
  TreeArena& arena_;
  const uint64_t arena_start_;
  uint64_t charged_ = 0;
  uint64_t granted_ = 0;  // budget() when it was last asked: it only grows.

  const uint8_t* const begin_;
  const uint8_t* const end_;
  const uint8_t* next_;
  const uint8_t* check_at_;  // Where the budget is looked at, at most end_.
  const uint8_t* op_;        // The opcode being run.
  const uint8_t* frame_end_ = nullptr;

  std::vector<Value> stack_;
  std::vector<uint16_t> heights_;  // Heights of the stack's containers.
  Value* top_;
  Value* limit_;
  Value* fence_;  // First value above the last mark.
  std::vector<uint32_t> marks_;

  // Slots 0 to n in `memo_`, those far beyond what was put in `far_memo_`.
  std::vector<Value> memo_;
  std::vector<uint16_t> memo_heights_;
  std::unordered_map<uint64_t, Value> far_memo_;
  uint64_t memo_count_ = 0;

  Value empty_tuple_;
  // Names met, "module\nname" as the file has them, and what they are.
  KeyTable global_table_;
  std::vector<Value> global_names_;
  std::vector<Global*> globals_met_;

  uint64_t seed_;
  KeyTable scratch_;
  std::unordered_map<const void*, KeyTable> tables_;

  struct BuiltState {
    Value state;
    uint64_t byte;
  };
  std::vector<BuiltState> states_;

  // An upper bound on the depth of the tree while nothing that is shared
  // changes; if it does, or the bound is too high, Finish() measures.
  uint16_t tallest_ = 0;
  bool container_shared_ = false;
  // Which objects were taken from the memo, or twice from the stack: a bit for
  // each byte of the pickle, set at the opcode that made such an object. Empty
  // if there are none.
  std::vector<uint64_t> shared_;
  bool must_measure_ = false;

  PickleResult result_;
};

}  // namespace haulway::pickle
