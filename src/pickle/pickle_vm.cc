// Design: one loop over the opcodes, on a stack of 16-byte values. The opcodes
// that dominate state dicts (texts, ints, memo, tuples, BINGET) run in place in
// Run(); rare ones are function calls. Text is not copied: values are views of
// the pickle. The memory that a parse may take is limited relative to the bytes
// that the file stores, and checked every 4 KiB, so that a small deflated file
// cannot demand gigabytes.
//
// Alternative not taken: a function table with a call per opcode would cost
// more than the few instructions that common opcodes take.

#include "pickle/pickle_vm.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/hash.h"
#include "base/text.h"
#include "haulway/pickle.h"
#include "pickle/pickle_depth.h"
#include "pickle/pickle_machine.h"
#include "pickle/pickle_opcodes.h"
#include "pickle/pickle_text.h"

namespace haulway::pickle {

namespace {

constexpr size_t kMostReserved = size_t{4} << 20;
constexpr uint64_t kFreeTreeBytes = 64 * kKiB;
constexpr int kNewestProtocol = 5;

// These functions saturate at the maximum on overflow.
uint64_t CapMultiply(uint64_t a, uint64_t b) {
  uint64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? ~uint64_t{0} : product;
}
void CapAdd(uint64_t* sum, uint64_t more) {
  if (__builtin_add_overflow(*sum, more, sum)) *sum = ~uint64_t{0};
}

}  // namespace

Machine::Machine(std::span<const std::byte> bytes, TreeArena& arena,
                 const PickleOptions& options, const GlobalTable& globals)
    : options_(options),
      globals_(globals),
      arena_(arena),
      arena_start_(arena.allocated_bytes()),
      begin_(reinterpret_cast<const uint8_t*>(bytes.data())),
      end_(begin_ + bytes.size()),
      next_(begin_),
      check_at_(begin_),
      op_(begin_),
      stack_(kFirstStack),
      heights_(kFirstStack),
      top_(stack_.data()),
      limit_(stack_.data() + stack_.size()),
      fence_(stack_.data()),
      seed_(ProcessSeed()) {
  // Reserved but untouched memory costs nothing; growing would copy.
  const size_t memo = std::min(bytes.size() / 10 + 16, kMostReserved);
  memo_.reserve(memo);
  memo_heights_.reserve(memo);
  empty_tuple_ = Value::Of(Kind::kTuple, arena_.New<Sequence>());
}

std::string_view Machine::op_name() const { return PickleOpcodeName(*op_); }

Status Machine::Fail(Code code, std::string_view what) const {
  return Status(code, what).At(op_byte());
}

Status Machine::Refuse(std::string_view what) {
  Status status = Status(Code::kUnsafe, what).At(op_byte());
  if (!options_.scan) return status;
  if (result_.unsafe.ok()) result_.unsafe = status;
  auto& findings = result_.findings;
  if (findings.size() < kMaxFindings) {
    findings.push_back(
        {Code::kUnsafe, std::string(status.message()), status.byte()});
  } else if (findings.size() == kMaxFindings) {
    findings.push_back({Code::kUnsafe, "more of the kind follow", op_byte()});
  }
  return {};
}

Status Machine::RefuseOpaque(std::string_view what) {
  if (!options_.keep_opaque || options_.scan) return Refuse(what);
  if (result_.unsafe.ok()) {
    result_.unsafe = Status(Code::kUnsafe, what).At(op_byte());
  }
  return {};
}

TreeBudget Machine::budget() const {
  const auto parsed = static_cast<uint64_t>(next_ - begin_);
  TreeBudget budget =
      TreeBudgetOf(options_.limits, parsed,
                   options_.stored_bytes == 0 ? parsed : options_.stored_bytes);
  CapAdd(&budget.bytes, kFreeTreeBytes);
  return budget;
}

Status Machine::Charge(uint64_t bytes) {
  charged_ += bytes;
  if (tree_bytes() <= granted_) [[likely]] {
    return {};
  }
  const TreeBudget most = budget();
  granted_ = most.bytes;
  if (tree_bytes() <= granted_) return {};
  return Fail(Code::kLimit, fmt::format("tree takes more than {} = {}",
                                        most.cap, most.cap_value));
}

Status Machine::TruncatedArgument(uint64_t needs) const {
  return Fail(Code::kTruncated,
              fmt::format("{} argument needs {} byte{}, {} remain", op_name(),
                          needs, needs == 1 ? "" : "s", end_ - next_));
}

template <class T>
bool Machine::ReadFixed(T* value) {
  if (static_cast<size_t>(end_ - next_) < sizeof(T)) return false;
  std::memcpy(value, next_, sizeof(T));
  next_ += sizeof(T);
  return true;
}

Status Machine::ReadLine(std::string_view* line) {
  const auto remaining = static_cast<size_t>(end_ - next_);
  const auto* stop =
      remaining == 0
          ? nullptr
          : static_cast<const uint8_t*>(std::memchr(next_, '\n', remaining));
  if (stop == nullptr) {
    return Fail(Code::kTruncated,
                fmt::format("{} argument has no end of line, {} bytes remain",
                            op_name(), remaining));
  }
  *line = {reinterpret_cast<const char*>(next_),
           static_cast<size_t>(stop - next_)};
  next_ = stop + 1;
  return {};
}

Status Machine::Proto() {
  uint8_t protocol = 0;
  if (!ReadFixed(&protocol)) return TruncatedArgument(1);
  if (op_ != begin_) {
    return Fail(Code::kCorrupt, "PROTO after the first opcode");
  }
  if (protocol > kNewestProtocol) {
    return Fail(Code::kUnsupported,
                fmt::format("pickle protocol {}: expected at most {}", protocol,
                            kNewestProtocol));
  }
  if (protocol > options_.limits.max_pickle_protocol) {
    return Fail(
        Code::kLimit,
        fmt::format("pickle protocol {}: more than max_pickle_protocol = {}",
                    protocol, options_.limits.max_pickle_protocol));
  }
  result_.protocol = protocol;
  return {};
}

Status Machine::Frame() {
  uint64_t length = 0;
  if (!ReadFixed(&length)) return TruncatedArgument(8);
  if (op_ < frame_end_) return Fail(Code::kCorrupt, "FRAME within a frame");
  const auto remaining = static_cast<uint64_t>(end_ - next_);
  if (length > remaining) {
    return Fail(Code::kTruncated,
                fmt::format("FRAME of {} bytes, {} remain", length, remaining));
  }
  frame_end_ = next_ + length;
  return {};
}

Status Machine::PushText(Kind kind, uint64_t length) {
  if (length > static_cast<uint64_t>(end_ - next_)) {
    return TruncatedArgument(length);
  }
  if (length > 0xFFFFFFFF) {
    return Fail(Code::kUnsupported,
                fmt::format("{} argument of {} bytes: expected less than 4 GiB",
                            op_name(), length));
  }
  const std::string_view text(reinterpret_cast<const char*>(next_),
                              static_cast<size_t>(length));
  if (kind == Kind::kString && !IsPickleText(text)) {
    return Fail(Code::kCorrupt,
                fmt::format("{} argument is not UTF-8", op_name()));
  }
  next_ += length;
  Push(Value::Text(kind, text));
  return {};
}

Status Machine::PushLong(uint64_t length) {
  if (length > static_cast<uint64_t>(end_ - next_)) {
    return TruncatedArgument(length);
  }
  if (length > options_.limits.max_integer_bytes) {
    return Fail(Code::kLimit, fmt::format("{} argument of {} bytes: more than "
                                          "max_integer_bytes = {}",
                                          op_name(), length,
                                          options_.limits.max_integer_bytes));
  }
  Push(DecodeInteger(
      {reinterpret_cast<const char*>(next_), static_cast<size_t>(length)}));
  next_ += length;
  return {};
}

Status Machine::PushFloat() {
  uint64_t bits = 0;
  if (!ReadFixed(&bits)) return TruncatedArgument(8);
  Push(Value::Float(std::bit_cast<double>(__builtin_bswap64(bits))));
  return {};
}

Status Machine::PushTextLine(uint8_t opcode) {
  std::string_view line;
  HAULWAY_TRY(ReadLine(&line));
  const auto malformed = [&] {
    return Fail(Code::kCorrupt, fmt::format("{} argument {} is malformed",
                                            op_name(), Quote(line)));
  };
  if (opcode == kString || opcode == kUnicode) {
    const bool is_unicode = opcode == kUnicode;
    const auto text = is_unicode ? DecodeRawUnicodeEscape(line, arena_)
                                 : UnquoteString(line, arena_);
    if (!text) return malformed();
    Push(Value::Text(is_unicode ? Kind::kString : Kind::kRawString, *text));
    return {};
  }
  if (opcode == kPersId) {
    if (!IsAscii(line)) return malformed();
    Push(Value::Text(Kind::kString, line));
    return MakePersistent();
  }
  if (opcode == kFloat) {
    const auto number = ParseFloat(line);
    if (!number) return malformed();
    Push(Value::Float(*number));
    return {};
  }
  if (opcode == kInt && (line == "00" || line == "01")) {
    Push(Value::Bool(line == "01"));
    return {};
  }
  std::string_view digits = line;
  if (opcode == kLong && digits.ends_with('L')) digits.remove_suffix(1);
  const size_t most = static_cast<size_t>(std::min<uint64_t>(
      kMaxDecimalDigits + 1, options_.limits.max_integer_bytes * 2));
  if (digits.size() > most) {
    return Fail(Code::kLimit,
                fmt::format("{} argument of {} characters: more than Python "
                            "or max_integer_bytes = {} allow",
                            op_name(), digits.size(),
                            options_.limits.max_integer_bytes));
  }
  const auto number = ParseDecimal(digits, arena_);
  if (!number) return malformed();
  Push(*number);
  return {};
}

// The most frequent opcodes of state dicts run in place.
Status Machine::Run() {
  for (;;) {
    op_ = next_;
    if (next_ >= check_at_) [[unlikely]] {
      if (next_ == end_) {
        return Fail(Code::kTruncated, "pickle ends without STOP");
      }
      HAULWAY_TRY(Charge(0));
      check_at_ = next_ + std::min(kBudgetStep, end_ - next_);
    }
    const uint8_t opcode = *next_++;
    ++result_.opcodes[opcode];
    switch (opcode) {
      case kBinPut: {
        if (next_ == end_) return TruncatedArgument(1);
        HAULWAY_TRY(PutMemo(*next_++));
        break;
      }
      case kLongBinPut: {
        uint32_t index = 0;
        if (!ReadFixed(&index)) return TruncatedArgument(4);
        HAULWAY_TRY(PutMemo(index));
        break;
      }
      case kMemoize:
        HAULWAY_TRY(PutMemo(memo_count_));
        break;
      case kBinGet: {
        if (next_ == end_) return TruncatedArgument(1);
        HAULWAY_TRY(GetMemo(*next_++));
        break;
      }
      case kLongBinGet: {
        uint32_t index = 0;
        if (!ReadFixed(&index)) return TruncatedArgument(4);
        HAULWAY_TRY(GetMemo(index));
        break;
      }
      case kMark:
        PushMark();
        break;
      case kNone:
        Push(Value());
        break;
      case kNewTrue:
        Push(Value::Bool(true));
        break;
      case kNewFalse:
        Push(Value::Bool(false));
        break;
      case kBinInt1: {
        if (next_ == end_) return TruncatedArgument(1);
        Push(Value::Int(*next_++));
        break;
      }
      case kBinInt2: {
        uint16_t value = 0;
        if (!ReadFixed(&value)) return TruncatedArgument(2);
        Push(Value::Int(value));
        break;
      }
      case kBinInt: {
        int32_t value = 0;
        if (!ReadFixed(&value)) return TruncatedArgument(4);
        Push(Value::Int(value));
        break;
      }
      case kBinUnicode: {
        uint32_t length = 0;
        if (!ReadFixed(&length)) return TruncatedArgument(4);
        HAULWAY_TRY(PushText(Kind::kString, length));
        break;
      }
      case kEmptyTuple:
        PushContainer(empty_tuple_, 1);
        break;
      case kTuple1:
        HAULWAY_TRY(MakeTuple(1));
        break;
      case kTuple2:
        HAULWAY_TRY(MakeTuple(2));
        break;
      case kTuple3:
        HAULWAY_TRY(MakeTuple(3));
        break;
      case kTuple:
        HAULWAY_TRY(MakeFromMark(Kind::kTuple));
        break;
      case kBinPersId:
        HAULWAY_TRY(MakePersistent());
        break;
      case kReduce:
        HAULWAY_TRY(Reduce());
        break;
      case kStop:
        return Finish();
      default:
        HAULWAY_TRY(StepRare(opcode));
    }
  }
}

Status Machine::StepRare(uint8_t opcode) {
  uint8_t length1 = 0;
  uint32_t length4 = 0;
  uint64_t length8 = 0;
  switch (opcode) {
    case kGlobal: {
      Value global;
      HAULWAY_TRY(ReadGlobal(&global));
      Push(global);
      return {};
    }
    case kStackGlobal:
      return StackGlobal();
    case kProto:
      return Proto();
    case kFrame:
      return Frame();
    case kPop:
      return Pop();
    case kPopMark:
      return PopToMark();
    case kDup:
      return Dup();
    case kPut:
      return TextMemo(/*put=*/true);
    case kGet:
      return TextMemo(/*put=*/false);

    case kInt:
    case kLong:
    case kFloat:
    case kString:
    case kUnicode:
    case kPersId:
      return PushTextLine(opcode);
    case kBinFloat:
      return PushFloat();
    case kLong1:
      if (!ReadFixed(&length1)) return TruncatedArgument(1);
      return PushLong(length1);
    case kLong4:
      if (!ReadFixed(&length4)) return TruncatedArgument(4);
      if (length4 > 0x7FFFFFFF) {
        return Fail(Code::kCorrupt, "LONG4 argument of negative length");
      }
      return PushLong(length4);
    case kShortBinString:
      if (!ReadFixed(&length1)) return TruncatedArgument(1);
      return PushText(Kind::kRawString, length1);
    case kBinString:
      if (!ReadFixed(&length4)) return TruncatedArgument(4);
      if (length4 > 0x7FFFFFFF) {
        return Fail(Code::kCorrupt, "BINSTRING argument of negative length");
      }
      return PushText(Kind::kRawString, length4);
    case kShortBinUnicode:
      if (!ReadFixed(&length1)) return TruncatedArgument(1);
      return PushText(Kind::kString, length1);
    case kBinUnicode8:
      if (!ReadFixed(&length8)) return TruncatedArgument(8);
      return PushText(Kind::kString, length8);
    case kShortBinBytes:
      if (!ReadFixed(&length1)) return TruncatedArgument(1);
      return PushText(Kind::kBytes, length1);
    case kBinBytes:
      if (!ReadFixed(&length4)) return TruncatedArgument(4);
      return PushText(Kind::kBytes, length4);
    case kBinBytes8:
      if (!ReadFixed(&length8)) return TruncatedArgument(8);
      return PushText(Kind::kBytes, length8);
    case kByteArray8:
      if (!ReadFixed(&length8)) return TruncatedArgument(8);
      return PushText(Kind::kByteArray, length8);

    case kEmptyList:
      PushContainer(Value::Of(Kind::kList, arena_.New<Sequence>()), 1);
      return {};
    case kEmptySet:
      PushContainer(Value::Of(Kind::kSet, arena_.New<Sequence>()), 1);
      return {};
    case kEmptyDict:
      PushContainer(Value::Of(Kind::kDict, arena_.New<Mapping>()), 1);
      return {};
    case kList:
      return MakeFromMark(Kind::kList);
    case kDict:
      return MakeFromMark(Kind::kDict);
    case kFrozenSet:
      return MakeFromMark(Kind::kFrozenSet);
    case kAppend:
      return Append();
    case kAppends:
      return Appends();
    case kSetItem:
      return SetItem();
    case kSetItems:
      return SetItems();
    case kAddItems:
      return AddItems();

    case kNewObj:
      return NewObj(/*keywords=*/false);
    case kNewObjEx:
      return NewObj(/*keywords=*/true);
    case kObj:
      return Obj();
    case kInst:
      return Inst();
    case kBuild:
      return Build();
    case kExt1:
    case kExt2:
    case kExt4:
      return Fail(Code::kUnsafe,
                  fmt::format("{} names an object by a number of a registry "
                              "that is not in the file",
                              op_name()));
    case kNextBuffer:
    case kReadOnlyBuffer:
      return Fail(
          Code::kUnsupported,
          fmt::format("{} needs a buffer from outside the pickle", op_name()));
    default:
      return Fail(Code::kCorrupt,
                  fmt::format("unknown opcode 0x{:02x}", opcode));
  }
}

Status Machine::Finish() {
  if (next_ < frame_end_) return Fail(Code::kCorrupt, "STOP within a frame");
  if (!marks_.empty()) {
    return Fail(Code::kCorrupt,
                fmt::format("STOP with {} MARK{} left open", marks_.size(),
                            marks_.size() == 1 ? "" : "s"));
  }
  if (available() != 1) {
    return Fail(Code::kCorrupt,
                fmt::format("STOP with {} items on the stack: expected 1",
                            available()));
  }
  // A dict that was checked when it became a state may have changed since.
  for (const BuiltState& built : states_) {
    op_ = begin_ + built.byte;
    HAULWAY_TRY(CheckState(built.state));
  }
  op_ = next_ - 1;
  HAULWAY_TRY(Charge(0));
  const Value root = top_[-1];
  const uint32_t most = options_.limits.max_depth;
  if (tallest_ > most || tallest_ == kTallest || must_measure_) {
    const uint64_t depth = MeasureDepth(root);
    if (depth > most) {
      return Fail(Code::kLimit,
                  fmt::format("tree is {} deep: more than max_depth = {}",
                              depth, most));
    }
  }
  result_.root = root;
  result_.complete = true;
  return {};
}

PickleResult Machine::TakeResult(Status status) {
  result_.consumed = static_cast<size_t>(next_ - begin_);
  if (!status.ok()) {
    result_.findings.push_back(
        {status.code(), std::string(status.message()), status.byte()});
  }
  return std::move(result_);
}

}  // namespace haulway::pickle

namespace haulway {

TreeBudget TreeBudgetOf(const ParseLimits& limits, uint64_t pickle_bytes,
                        uint64_t stored_bytes) {
  const TreeBudget budgets[] = {
      {pickle::CapMultiply(pickle_bytes, limits.max_tree_bytes_per_byte),
       "max_tree_bytes_per_byte", limits.max_tree_bytes_per_byte},
      {pickle::CapMultiply(stored_bytes, limits.max_tree_bytes_per_stored_byte),
       "max_tree_bytes_per_stored_byte", limits.max_tree_bytes_per_stored_byte},
      {limits.max_tree_bytes, "max_tree_bytes", limits.max_tree_bytes},
  };
  return *std::ranges::min_element(budgets, {}, &TreeBudget::bytes);
}

bool IsOpaque(const Value& value) {
  if (value.is(Kind::kGlobal)) return !value.global().allowed;
  if (!value.is(Kind::kObject)) return false;
  const Object& object = value.object();
  return !object.called.is(Kind::kNone) &&
         (object.callable == nullptr || !object.callable->allowed);
}

Result<PickleResult> ParsePickle(std::span<const std::byte> bytes,
                                 TreeArena& arena,
                                 const PickleOptions& options) {
  const GlobalTable default_table;
  const GlobalTable& globals =
      options.globals == nullptr ? default_table : *options.globals;
  const uint64_t most = options.limits.max_pickle_bytes;
  const bool cut = bytes.size() > most;
  if (cut) bytes = bytes.first(static_cast<size_t>(most));
  pickle::Machine machine(bytes, arena, options, globals);
  Status status = machine.Run();
  if (cut && status.code() == Code::kTruncated) {
    status =
        Status(Code::kLimit,
               fmt::format("pickle is longer than max_pickle_bytes = {}", most))
            .At(status.byte().value_or(0));
  }
  PickleResult result = machine.TakeResult(status);
  if (status.ok() || options.scan) return result;
  // Python would have executed the unsafe part before it met the fault.
  const bool is_part =
      options.more_follows && status.code() == Code::kTruncated;
  return result.unsafe.ok() || is_part ? status : std::move(result.unsafe);
}

}  // namespace haulway
