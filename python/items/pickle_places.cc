#include "items/pickle_places.h"

#include <cstdint>
#include <cstring>

#include "items/pickle_opcodes.h"

namespace haulway::python {

namespace {

// A value on the simulated stack of the unpickler. Values that hold a buffer,
// or could come to hold one, belong to a group; if one value is put into
// another, their groups are joined.
struct Value {
  int32_t group = -1;
  bool is_plain = false;  // Exactly a list, tuple or dict, no subclass.
};

class Machine {
 public:
  explicit Machine(std::span<const std::byte> stream) : stream_(stream) {}

  // Returns false if CPython's pickler cannot have written the stream.
  bool Run() {
    PickleWalker walker(stream_);
    while (walker.Next()) {
      if (!Step(walker)) return false;
    }
    return walker.ok();
  }
  size_t buffers() const { return buffers_.size(); }
  bool IsInside(size_t buffer) { return inside_[Find(buffers_[buffer])]; }

 private:
  int32_t NewGroup() {
    joined_.push_back(static_cast<int32_t>(joined_.size()));
    inside_.push_back(false);
    return joined_.back();
  }
  int32_t Find(int32_t group) {
    while (joined_[group] != group) {
      joined_[group] = joined_[joined_[group]];
      group = joined_[group];
    }
    return group;
  }
  int32_t Join(int32_t a, int32_t b) {
    if (a < 0 || b < 0) return a < 0 ? b : a;
    a = Find(a);
    b = Find(b);
    joined_[b] = a;
    inside_[a] = inside_[a] || inside_[b];
    return a;
  }
  void Mark(const Value& value) {
    if (value.group >= 0) inside_[Find(value.group)] = true;
  }
  void Put(const Value& into, const Value& value) {
    if (into.is_plain) {
      Join(into.group, value.group);
    } else {
      Mark(value);
    }
  }

  bool Has(size_t count) const { return stack_.size() >= count; }
  Value Pop() {
    const Value value = stack_.back();
    stack_.pop_back();
    return value;
  }
  void Push(Value value = {}) { stack_.push_back(value); }
  // Pops `taken` values and pushes an unknown object. All but the lowest value
  // become part of that object.
  bool MakeObject(size_t taken) {
    if (!Has(taken)) return false;
    for (size_t i = 1; i < taken; ++i) Mark(Pop());
    stack_.back() = Value();
    return true;
  }
  bool MakeTuple(size_t count) {
    if (!Has(count)) return false;
    Value tuple = {-1, true};
    for (size_t i = 0; i < count; ++i)
      tuple.group = Join(tuple.group, Pop().group);
    Push(tuple);
    return true;
  }
  // Pops the last mark and sets `count` to the number of values above it.
  bool Unmark(size_t* count) {
    if (marks_.empty() || marks_.back() > stack_.size()) return false;
    *count = stack_.size() - marks_.back();
    marks_.pop_back();
    return true;
  }
  bool Remember(size_t index) {
    if (!Has(1) || index > memo_.size() + stream_.size()) return false;
    if (index >= memo_.size()) memo_.resize(index + 1);
    memo_[index] = stack_.back();
    return true;
  }
  bool Recall(size_t index) {
    if (index >= memo_.size()) return false;
    Push(memo_[index]);
    return true;
  }
  size_t Operand(const PickleWalker& walker) const {
    uint32_t operand = 0;
    std::memcpy(&operand, &stream_[walker.start() + 1],
                walker.end() - walker.start() - 1);
    return operand;
  }
  // Puts the top `count` values into the list below them.
  bool Extend(size_t count) {
    if (!Has(count + 1)) return false;
    const Value into = stack_[stack_.size() - count - 1];
    for (size_t i = 0; i < count; ++i) Put(into, Pop());
    return true;
  }
  // Puts the top `count` values, alternating keys and values, into the dict
  // below them.
  bool Update(size_t count) {
    if (!Has(count + 1) || count % 2 != 0) return false;
    const Value into = stack_[stack_.size() - count - 1];
    for (size_t i = 0; i < count; i += 2) {
      Put(into, Pop());
      Mark(Pop());
    }
    return true;
  }

  bool Step(const PickleWalker& walker) {
    size_t count = 0;
    switch (static_cast<uint8_t>(walker.opcode())) {
      case 0x80:  // PROTO
      case 0x95:  // FRAME
      case 0x98:  // READONLY_BUFFER
      case '.':   // STOP
        return true;
      case '(':  // MARK
        marks_.push_back(stack_.size());
        return true;
      case ']':  // EMPTY_LIST
      case '}':  // EMPTY_DICT
        Push({NewGroup(), true});
        return true;
      case 0x97:  // NEXT_BUFFER
        buffers_.push_back(NewGroup());
        Push({buffers_.back(), false});
        return true;
      case 0x85:  // TUPLE1
        return MakeTuple(1);
      case 0x86:  // TUPLE2
        return MakeTuple(2);
      case 0x87:  // TUPLE3
        return MakeTuple(3);
      case 't':  // TUPLE
        return Unmark(&count) && MakeTuple(count);
      case 'a':  // APPEND
        return Extend(1);
      case 'e':  // APPENDS
        return Unmark(&count) && Extend(count);
      case 's':  // SETITEM
        return Update(2);
      case 'u':  // SETITEMS
        return Unmark(&count) && Update(count);
      case 0x90:  // ADDITEMS
        if (!Unmark(&count) || !Has(count + 1)) return false;
        for (size_t i = 0; i < count; ++i) Mark(Pop());
        return true;
      case 0x91:  // FROZENSET
        if (!Unmark(&count)) return false;
        for (size_t i = 0; i < count; ++i) Mark(Pop());
        Push();
        return true;
      case 'b':  // BUILD
        if (!Has(2)) return false;
        Mark(Pop());
        return true;
      case 'R':   // REDUCE
      case 0x81:  // NEWOBJ
        return MakeObject(2);
      case 0x92:  // NEWOBJ_EX
        return MakeObject(3);
      case 0x93:  // STACK_GLOBAL
        return MakeObject(2);
      case 0x94:  // MEMOIZE
        return Remember(memo_.size());
      case 'q':  // BINPUT
      case 'r':  // LONG_BINPUT
        return Remember(Operand(walker));
      case 'h':  // BINGET
      case 'j':  // LONG_BINGET
        return Recall(Operand(walker));
      case '0':  // POP
        if (!Has(1)) return false;
        Pop();
        return true;
      case '1':  // POP_MARK
        if (!Unmark(&count)) return false;
        stack_.resize(stack_.size() - count);
        return true;
      case '2':  // DUP
        if (!Has(1)) return false;
        Push(stack_.back());
        return true;
      case 'd':  // DICT
      case 'l':  // LIST
      case 'i':  // INST
      case 'o':  // OBJ
      case 'g':  // GET
      case 'p':  // PUT
      case 'P':  // PERSID
      case 'Q':  // BINPERSID
        return false;
      default:
        // All other opcodes push one value.
        Push();
        return true;
    }
  }

  std::span<const std::byte> stream_;
  std::vector<Value> stack_;
  std::vector<size_t> marks_;
  std::vector<Value> memo_;
  std::vector<int32_t> joined_;
  std::vector<bool> inside_;
  std::vector<int32_t> buffers_;  // The group of each buffer.
};

}  // namespace

std::vector<bool> GoesIntoObjects(std::span<const std::byte> stream,
                                  size_t buffers) {
  std::vector<bool> inside(buffers, true);
  Machine machine(stream);
  if (!machine.Run() || machine.buffers() != buffers) return inside;
  for (size_t i = 0; i < buffers; ++i) inside[i] = machine.IsInside(i);
  return inside;
}

}  // namespace haulway::python
