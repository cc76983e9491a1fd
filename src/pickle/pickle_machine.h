// The implementation of ParsePickle(): a stack, marks and a memo of Values.

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

// Returns "a list", "an object", for messages.
std::string_view Describe(Kind kind);

class Machine {
 public:
  Machine(std::span<const std::byte> bytes, TreeArena& arena,
          const PickleOptions& options, const GlobalTable& globals);

  Status Run();
  // Returns the result. Requires: Run() was called.
  PickleResult TakeResult(Status status);

 private:
  static constexpr size_t kMaxFindings = 1000;
  static constexpr size_t kFirstStack = 512;
  // The budget is checked after this many bytes of the pickle, and by opcodes
  // that allocate much at once.
  static constexpr ptrdiff_t kBudgetStep = 4096;
  // Upper bound for heights; larger heights are measured instead.
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
  // Returns the height of the value at `slot`: 0 for scalars, 1 for a container
  // of scalars.
  uint16_t HeightAt(const Value* slot) const {
    const Kind kind = slot->kind();
    return kind < Kind::kTuple || kind == Kind::kGlobal
               ? 0
               : heights_[static_cast<size_t>(slot - stack_.data())];
  }
  // Returns one more than the maximum height in [from, top_).
  uint16_t HeightOver(const Value* from);
  void Raise(Value* target, uint16_t height);

  Status Underflow(size_t expected) const;
  void PushMark();
  // Removes the last mark. `*items` becomes the first value above it.
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
  // `pairs` alternates keys and values.
  Status Set(Value* target, const Value* pairs, size_t count);
  Status SetPairs(Mapping* mapping, const Value* pairs, size_t count);
  Status AddToSet(Sequence* set, const Value* items, size_t count);
  Status ReserveSequence(Sequence* list, size_t more);
  Status ReserveMapping(Mapping* mapping, size_t more);
  Status CheckItems(uint64_t count) const;
  // Returns the key table of a container that is filled in several batches, or
  // null if it has so few keys that comparing them one by one is faster.
  KeyTable* TableFor(const void* container, const Value* first, size_t stride,
                     size_t size, size_t more);
  Status UnhashableOrLimit(const Value& key) const;
  void NoteChange(const Value& target);
  void NoteShared(const Value& value);

  // --- pickle_reduce.cc: names, and the meaning of calls.

  // Returns the Global for a name, and records the mention.
  Status MeetGlobal(std::string_view module, std::string_view name,
                    std::string_view key, Value* global);
  // Reads the two lines of GLOBAL and INST.
  Status ReadGlobal(Value* global);
  Status StackGlobal();
  Status Reduce();
  Status NewObj(bool keywords);
  Status Obj();
  Status Inst();
  // Applies `callee` to the items above the last mark, and stores the result at
  // `place`.
  Status ApplyToMark(const Value& callee, Value* items, Value* place);
  // Evaluates `callee` applied to the tuple `args`. `*height` is that of `args`
  // on entry, and of the result on return.
  Status Apply(const Value& callee, const Value& args, const Value& kwargs,
               bool is_new, Value* result, uint16_t* height);
  Status CheckProcessCall(const Global& global, const Value& kwargs,
                          bool is_new);
  Status ApplyAttribute(const Value& args, bool is_new, Value* result);
  // Evaluates a call that creates plain data.
  Status ApplyPlain(GlobalKind kind, const Value& args, Value* result);
  Status ApplySequence(Kind kind, const Value& args, Value* result);
  Status ApplyMapping(Kind kind, const Value& args, Value* result);
  Status ApplyBytes(Kind kind, const Value& args, Value* result);
  Status ApplyComplex(const Value& args, Value* result);
  Status BadArguments() const;
  Status Build();
  // Returns the class in a persistent id ('module', class, file, source), as
  // torch up to 1.5 wrote module classes; otherwise null.
  static Global* ModuleClass(const Value& callee);
  // Checks attributes to be set: none may have a special Python name.
  Status NoteState(const Value& state);
  Status CheckState(const Value& state);
  Status CheckStateKeys(const Value& state);
  ObjectExtras* ExtrasOf(Object* object);

  // --- Errors.
  uint64_t op_byte() const { return static_cast<uint64_t>(op_ - begin_); }
  std::string_view op_name() const;
  Status Fail(Code code, std::string_view what) const;
  // Reports something unsafe: fails, or, when scanning, adds a finding and
  // returns ok.
  Status Refuse(std::string_view what);
  // As Refuse(), for something opaque that the options may keep.
  Status RefuseOpaque(std::string_view what);
  // Charges memory or time that an opcode takes beyond its own size.
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
  uint64_t granted_ = 0;  // The last known budget(), which only grows.

  const uint8_t* const begin_;
  const uint8_t* const end_;
  const uint8_t* next_;
  const uint8_t* check_at_;  // Where the budget is checked next; at most end_.
  const uint8_t* op_;        // The current opcode.
  const uint8_t* frame_end_ = nullptr;

  std::vector<Value> stack_;
  std::vector<uint16_t> heights_;  // Parallel to stack_: heights of containers.
  Value* top_;
  Value* limit_;
  Value* fence_;  // The first value above the last mark.
  std::vector<uint32_t> marks_;

  // Entries 0 to n are in `memo_`, entries with much larger numbers in
  // `far_memo_`.
  std::vector<Value> memo_;
  std::vector<uint16_t> memo_heights_;
  std::unordered_map<uint64_t, Value> far_memo_;
  uint64_t memo_count_ = 0;

  Value empty_tuple_;
  // Names that were met, as "module\nname" in the file's spelling, and their
  // Globals.
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

  // An upper bound on the depth of the tree, valid while no shared container
  // changes. If one does, or the bound exceeds the limit, Finish() measures the
  // depth.
  uint16_t tallest_ = 0;
  bool container_shared_ = false;
  // Objects that were fetched from the memo or duplicated on the stack: one bit
  // per byte of the pickle, set at the opcode that created the object. Empty if
  // there are none.
  std::vector<uint64_t> shared_;
  bool must_measure_ = false;

  PickleResult result_;
};

}  // namespace haulway::pickle
