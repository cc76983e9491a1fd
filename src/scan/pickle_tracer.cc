// Design: the tracer executes opcodes on a stack of kinds. A value takes eight
// bytes: the kind of the object, and the offset of the opcode that made it. If
// a string turns out to name something, it is decoded again from that offset.
// So memory depends on the number of values alive at a time, not on the
// contents of the pickle.
//
// The trace ends where every unpickler fails. Where one may fail (a string that
// is not UTF-8, arguments that are not a tuple) the trace goes on, because that
// is the only way to find more names.
//
// Tried instead: the pickle machine that loads. It builds every object, which
// costs hundreds of bytes per opcode, and it is strict, so it stops at opcodes
// that Python's unpicklers execute.

#include "scan/pickle_tracer.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/ascii.h"
#include "base/text.h"
#include "pickle/pickle_opcodes.h"
#include "scan/tracer.h"

namespace haulway::scan {

namespace {

using namespace haulway::pickle;  // Opcodes.

constexpr int kNewestProtocol = 5;

// Returns whether every reader refuses `text` as a number because of a letter
// that no number has. `letters`: the letters that numbers may have.
bool IsNoNumber(std::string_view text, std::string_view letters) {
  text = text.substr(0, text.find('\0'));
  return std::ranges::any_of(text, [&](char c) {
    return !IsSpace(c) && !(c >= '0' && c <= '9') &&
           letters.find(c) == letters.npos;
  });
}

}  // namespace

std::optional<int64_t> LineNumber(std::string_view text) {
  text = text.substr(0, text.find('\0'));
  while (!text.empty() && IsSpace(text.front())) text.remove_prefix(1);
  while (!text.empty() && IsSpace(text.back())) text.remove_suffix(1);
  const bool negative = text.starts_with('-');
  if (negative || text.starts_with('+')) text.remove_prefix(1);
  if (text.empty()) return std::nullopt;
  int64_t number = 0;
  for (const char c : text) {
    if (c == '_') continue;
    if (c < '0' || c > '9') return std::nullopt;
    number =
        number > (INT64_MAX - 9) / 10 ? INT64_MAX : number * 10 + (c - '0');
  }
  return negative ? -number : number;
}

Status Tracer::Frame() {
  HAULWAY_ASSIGN(const uint64_t length, Fixed<uint64_t>());
  if (ended_) return Status();
  if (frame_end_.has_value() && next_ < *frame_end_) {
    if (only_python_) {
      Broken("FRAME within a frame");
      return Status();
    }
    Fault(Code::kUnsafe,
          "FRAME within a frame, where unpicklers read different bytes");
    return Status();
  }
  if (length > window_.end() - next_) {
    if (length > INT64_MAX) {
      Broken("FRAME is longer than any file");
      return Status();
    }
    // The C unpickler fails here. The Python one reads the bytes that remain.
    trace_.doubt = "FRAME is longer than what remains";
    only_python_ = true;
    frame_end_ = window_.end();
    return Status();
  }
  frame_end_ = next_ + length;
  return Status();
}

Status Tracer::Execute(uint8_t opcode) {
  switch (opcode) {
    case kProto: {
      HAULWAY_ASSIGN(const uint8_t protocol, U8());
      if (ended_) return Status();
      if (protocol > kNewestProtocol) {
        Broken(fmt::format("protocol {} is not known", protocol));
        return Status();
      }
      protocol_ = protocol;
      trace_.protocol = std::max(trace_.protocol, protocol_);
      return Status();
    }
    case kFrame:
      return Frame();
    case kStop:
      if (Has(1)) End(TraceEnd::kStop, "");
      return Status();
    case kMark:
      marks_.push_back(stack_.size());
      return Status();
    case kPop:
      // If the stack above a mark is empty, POP takes the mark.
      if (stack_.size() > floor()) {
        stack_.pop_back();
      } else {
        PopMark();
      }
      return Status();
    case kPopMark:
      PopMark();
      return Status();
    case kDup:
      if (Has(1)) Push(stack_.back());
      return Status();
    case kNone:
    case kNewTrue:
    case kNewFalse:
    case kEmptyList:
    case kEmptySet:
      Push(Kind::kOther);
      return Status();
    case kEmptyTuple:
      Push(Kind::kTuple);
      last_tuple_ = {op_, {}, true};
      if (joblib_) tuples_[op_] = {};
      return Status();
    case kEmptyDict:
      Push(Kind::kDict);
      return Status();
    case kBinFloat:
      Skip(8);
      Push(Kind::kOther);
      return Status();
    case kBinInt:
      Skip(4);
      Push(Kind::kNumber);
      return Status();
    case kBinInt1:
      Skip(1);
      Push(Kind::kNumber);
      return Status();
    case kBinInt2:
      Skip(2);
      Push(Kind::kNumber);
      return Status();
    case kLong1: {
      HAULWAY_ASSIGN(const uint8_t length, U8());
      Skip(length);
      Push(Kind::kNumber);
      return Status();
    }
    case kLong4: {
      HAULWAY_ASSIGN(const auto length, Fixed<int32_t>());
      if (length < 0) {
        Broken("LONG4 has a negative length");
        return Status();
      }
      Skip(static_cast<uint64_t>(length));
      Push(Kind::kOther);
      return Status();
    }
    case kPut: {
      HAULWAY_ASSIGN(const Line line, ReadLine());
      const auto number = LineNumber(line.text);
      if (!number.has_value() || *number < 0) {
        Broken("PUT has no number");
      } else if (*number == INT64_MAX) {
        if (Has(1))
          Fault(Code::kUnsafe,
                "PUT of a number that only one of Python's unpicklers takes");
      } else {
        Put(static_cast<uint64_t>(*number));
      }
      break;
    }
    case kGet: {
      HAULWAY_ASSIGN(const Line line, ReadLine());
      const auto number = LineNumber(line.text);
      if (!number.has_value() || *number < 0) {
        Broken("GET has no number");
      } else if (*number == INT64_MAX) {
        // Every unpickler fails here unless an earlier opcode put it in the
        // memo, which a fault would have reported.
        if (trace_.faults.empty())
          Broken("what is asked of the memo is not there");
        Push(Kind::kObject);
      } else {
        Get(static_cast<uint64_t>(*number));
      }
      break;
    }
    case kBinPut: {
      HAULWAY_ASSIGN(const uint8_t number, U8());
      if (!ended_) Put(number);
      return Status();
    }
    case kLongBinPut: {
      HAULWAY_ASSIGN(const auto number, Fixed<uint32_t>());
      if (!ended_) Put(number);
      return Status();
    }
    case kMemoize:
      Put(memo_.count());
      return Status();
    case kBinGet: {
      HAULWAY_ASSIGN(const uint8_t number, U8());
      if (!ended_) Get(number);
      return Status();
    }
    case kLongBinGet: {
      HAULWAY_ASSIGN(const auto number, Fixed<uint32_t>());
      if (!ended_) Get(number);
      return Status();
    }
    case kPersId: {
      HAULWAY_ASSIGN(const Line line, ReadLine());
      Push(Kind::kOther);
      if (!options_.persistent_ids) Broken("there are no persistent ids here");
      break;
    }
    case kBinPersId:
      Pop();
      Push(Kind::kOther);
      if (!options_.persistent_ids) Broken("there are no persistent ids here");
      return Status();
    case kReadOnlyBuffer:
      if (Has(1)) stack_.back() = Thing(Kind::kOther, op_);
      return Status();
    case kBuild:
      return Build();
    case kReduce:
    case kNewObj:
    case kNewObjEx:
    case kObj:
      ExecuteCall(opcode);
      return Status();
    case kGlobal:
    case kInst:
    case kStackGlobal:
    case kExt1:
    case kExt2:
    case kExt4:
      HAULWAY_TRY(ExecuteName(opcode));
      break;
    case kAppend:
    case kAppends:
    case kSetItem:
    case kSetItems:
    case kAddItems:
    case kList:
    case kDict:
    case kTuple:
    case kTuple1:
    case kTuple2:
    case kTuple3:
    case kFrozenSet:
      ExecuteContainer(opcode);
      return Status();
    default:
      HAULWAY_TRY(ExecuteText(opcode));
  }
  if (cut_ && !ended_) End(TraceEnd::kCut, "the last line is not ended");
  return Status();
}

// Executes opcodes whose argument is text or bytes. Ends the trace at bytes
// that are not an opcode.
Status Tracer::ExecuteText(uint8_t opcode) {
  uint64_t length = 0;
  Kind kind = Kind::kText;
  switch (opcode) {
    case kInt:
    case kLong:
    case kFloat: {
      HAULWAY_ASSIGN(const Line line, ReadLine());
      const bool floating = opcode == kFloat;
      if (IsNoNumber(line.text, floating ? "+-._eEiInNfFaAtTyY"
                                         : "+-_abcdefABCDEFxXoOlL")) {
        Broken(fmt::format("{} has no number", PickleOpcodeName(opcode)));
      }
      Push(floating ? Kind::kOther : Kind::kNumber);
      return Status();
    }
    case kString: {
      HAULWAY_ASSIGN(const Line line, ReadLine());
      const std::string& text = line.text;
      const bool quoted =
          !text.empty() && (text[0] == '\'' || text[0] == '"') &&
          (!line.whole || (text.size() >= 2 && text.back() == text[0]));
      if (!quoted) Broken("STRING is not quoted");
      NoteText(line);
      Push(Kind::kText);
      return Status();
    }
    case kUnicode: {
      HAULWAY_ASSIGN(const Line line, ReadLine());
      NoteText(line);
      Push(Kind::kText);
      return Status();
    }
    case kBinString: {
      HAULWAY_ASSIGN(const auto found, Fixed<int32_t>());
      if (found < 0) {
        Broken("BINSTRING has a negative length");
        return Status();
      }
      length = static_cast<uint64_t>(found);
      break;
    }
    case kShortBinBytes:
      kind = Kind::kOther;
      [[fallthrough]];
    case kShortBinString:
    case kShortBinUnicode: {
      HAULWAY_ASSIGN(length, U8());
      break;
    }
    case kBinBytes:
      kind = Kind::kOther;
      [[fallthrough]];
    case kBinUnicode: {
      HAULWAY_ASSIGN(length, Fixed<uint32_t>());
      break;
    }
    case kBinBytes8:
    case kByteArray8:
      kind = Kind::kOther;
      [[fallthrough]];
    case kBinUnicode8: {
      HAULWAY_ASSIGN(length, Fixed<uint64_t>());
      break;
    }
    case kNextBuffer:
      trace_.doubt = "NEXT_BUFFER takes what only the reading program has";
      Push(Kind::kOther);
      return Status();
    default:
      Broken(fmt::format("byte {} is no opcode", opcode));
      return Status();
  }
  Skip(length);
  Push(kind);
  return kind == Kind::kText ? NoteText(next_ - length, length) : Status();
}

void Tracer::CheckContainer() {
  CheckTarget();
  if (ended_ || numpy_is_callers_) return;
  const Kind kind = stack_.back().kind();
  // An item of an array may name an address (tracer_calls.cc).
  if (kind == Kind::kArray || kind == Kind::kNumpy || kind == Kind::kDType) {
    Fault(Code::kUnsafe, "what NumPy made would be changed");
  }
}

void Tracer::CheckTarget() {
  if (!Has(1)) return;
  if (stack_.back().is(Kind::kMember)) {
    Fault(Code::kUnsafe, "a member of an enumeration itself would be changed");
    return;
  }
  if (!stack_.back().is(Kind::kGlobal)) return;
  getattr_changed_ = getattr_changed_ || IsGetattr(stack_.back());
  const auto& [module, name] = names_[stack_.back().at()];
  Fault(Code::kUnsafe, fmt::format("{} itself would be changed",
                                   Quote(fmt::format("{}.{}", module, name))));
}

void Tracer::ExecuteContainer(uint8_t opcode) {
  switch (opcode) {
    case kAppend:
      Pop();
      CheckContainer();
      return;
    case kSetItem: {
      const Thing value = Pop();
      const Thing key = Pop();
      CheckContainer();
      if (ended_) return;
      if (numpy_) NoteNumpyItems(stack_.back(), {key, value});
      if (joblib_) NoteItems(stack_.back(), {key, value});
      return;
    }
    case kAppends:
    case kAddItems:
    case kSetItems: {
      const std::vector<Thing> items = PopMark();
      CheckContainer();
      if (ended_ || opcode != kSetItems) return;
      if (numpy_) NoteNumpyItems(stack_.back(), items);
      NoteItems(stack_.back(), items);
      return;
    }
    case kList:
    case kFrozenSet:
      PopMark();
      Push(Kind::kOther);
      return;
    case kDict: {
      const std::vector<Thing> items = PopMark();
      Push(Kind::kDict);
      if (numpy_) NoteNumpyItems(stack_.back(), items);
      NoteItems(stack_.back(), items);
      return;
    }
    default:
      break;
  }
  std::vector<Thing> items;
  bool whole = true;
  if (opcode == kTuple) {
    const size_t count = stack_.size() - floor();
    items = PopMark();
    whole = items.size() == count;
  } else {
    const size_t count = static_cast<size_t>(opcode) - kTuple1 + 1;
    if (!Has(count)) return;
    items.assign(stack_.end() - static_cast<ptrdiff_t>(count), stack_.end());
    stack_.resize(stack_.size() - count);
  }
  Push(Kind::kTuple);
  if (getattr_.has_value()) NoteMember(items);
  if (numpy_ && !ended_) NoteNumpyTuple(items);
  if (joblib_) tuples_[op_] = items;
  if (careful_ || joblib_ || numpy_)
    last_tuple_ = {op_, std::move(items), whole};
}

Status Tracer::Build() {
  const Thing state = Pop();
  CheckTarget();
  if (ended_) return Status();
  const Thing built = stack_.back();
  // The second part of a tuple; a dict is merged into that of the object.
  sets_attributes_ =
      sets_attributes_ || state.is(Kind::kTuple) || state.is_made();
  if (built.is(Kind::kDType)) {
    BuildDType(built, state);
  } else if (built.is(Kind::kArray)) {
    BuildArray(built);
  } else if (built.is(Kind::kNumpy) ||
             (built.is(Kind::kRead) && options_.arrays) ||
             (built.is(Kind::kInstance) && IsNumpy(built))) {
    Fault(Code::kUnsafe, "a state is given to what NumPy writes without one");
  }
  if (joblib_ && IsArrayWrapper(built)) return PassArray(state);
  return Status();
}

// Adds the findings of another trace, with offsets increased by `moved`.
void Tracer::Add(const Trace& other, uint64_t moved) {
  trace_.global_count += other.global_count;
  for (NamedGlobal global : other.globals) {
    if (trace_.globals.size() >= kMostGlobals) break;
    global.byte += moved;
    trace_.globals.push_back(std::move(global));
  }
  for (const Finding& fault : other.faults) {
    if (trace_.faults.size() >= kMostFaults) break;
    trace_.faults.push_back(fault);
  }
}

Result<Trace> TracePickle(const ByteSource& source, uint64_t begin,
                          uint64_t end, const TraceOptions& options) {
  return Tracer(source, begin, end, options).Run();
}

PickleRow::PickleRow(const ByteSource& source, uint64_t begin)
    : source_(source), begin_(begin) {}

PickleRow::~PickleRow() = default;

Result<Trace> PickleRow::Next(const TraceOptions& options) {
  if (tracer_ == nullptr) {
    tracer_ =
        std::make_unique<Tracer>(source_, begin_, source_.size(), options);
  } else {
    tracer_->Restart(options);
  }
  return tracer_->Run();
}

bool PickleRow::remembers() const {
  return tracer_ != nullptr && tracer_->remembers();
}

}  // namespace haulway::scan
