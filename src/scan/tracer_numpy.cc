// What a pickle makes of NumPy's classes.
//
// NumPy believes the state of a type: its flags say whether what it describes
// are numbers or addresses of objects, its size how far to read. And an array
// that gets its state again gives its memory back though others look at it. So
// a pickle of names that only describe data could reach any byte of a process.
//
// How: of types and arrays the one way is followed in which NumPy writes them.
// A type is numpy.dtype('f8', False, True) with the flags and size of its kind;
// an array is _reconstruct(numpy.ndarray, (0,), b'b') and gets a state once.
// Every other use of the two classes is a fault, which counting shows: as often
// as one comes to the stack it must leave it by such a call.
//
// Types of fields, and of arrays within arrays, are not followed: they are not
// known to be safe.

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "base/text.h"
#include "pickle/pickle_opcodes.h"
#include "scan/tracer.h"

namespace haulway::scan {

namespace {

using namespace haulway::pickle;  // The opcodes.

// numpy/dtype_api.h: what NumPy sets of a type of objects, and those of the
// flags that say that there are references, or that others read and write them.
constexpr int64_t kObjectFlags = 0x3F;
constexpr int64_t kReferenceFlags = 0x67;
// Arrays that wait for their state: as many as are within each other.
constexpr size_t kMostUnbuilt = 1'000;

// NumPy keeps them in an int.
constexpr int64_t kMostItemBytes = INT32_MAX;
constexpr std::string_view kKinds = "?biufcmMOSUV";

}  // namespace

void Tracer::NoteNumpyName(std::string_view full, uint64_t place) {
  numpy_ = true;
  for (const auto& [name, watched] : {std::pair("numpy.dtype", &dtype_class_),
                                      {"numpy.ndarray", &array_class_}}) {
    if (full != name || watched->place.has_value()) continue;
    watched->place = place;
    watched->byte = op_ - begin_;
  }
}

bool Tracer::IsNumpy(Thing thing) const {
  const auto& [module, name] = names_[thing.at()];
  return module.starts_with("numpy") &&
         !options_.names->IsCallers(module, name);
}

// Whether it is what the opcode alone makes, as None.
bool Tracer::IsOpcode(Thing thing, uint8_t opcode) const {
  std::array<std::byte, 1> found;
  return thing.is(Kind::kOther) && source_.ReadAt(thing.at(), found).ok() &&
         static_cast<uint8_t>(found[0]) == opcode;
}

void Tracer::NotePush(Thing thing) {
  if (Is(dtype_class_, thing)) ++dtype_class_.pushes;
  if (Is(array_class_, thing)) ++array_class_.pushes;
  // One that comes from the memo could be in two places.
  if (thing.is(Kind::kTuple) && array_arguments_ == thing.at() &&
      thing.at() != op_) {
    Fault(Code::kUnsafe, "the arguments of an array are used twice");
  }
}

void Tracer::NoteNumpyTuple(const std::vector<Thing>& items) {
  const auto number = [&](size_t i) -> std::optional<int64_t> {
    const auto found = IntegerAt(items[i]);
    return found.ok() ? *found : std::nullopt;
  };
  if (items.size() == 1 && number(0) == 0) empty_shapes_.insert(op_);
  if (items.size() == 3 && Is(array_class_, items[0]) &&
      items[1].is(Kind::kTuple) && empty_shapes_.contains(items[1].at()) &&
      !array_arguments_.has_value()) {
    array_arguments_ = op_;
    ++array_class_.uses;
  }
  // 'f8', no alignment, and a copy, which alone may be given a state.
  if (items.size() == 3 && items[0].is(Kind::kText) &&
      dtype_class_.place.has_value()) {
    const auto text = TextAt(items[0].at());
    if (!text.ok() || !text->has_value()) return;
    std::string_view code = **text;
    if (!code.empty() && std::string_view("<>=|").find(code[0]) != code.npos) {
      code.remove_prefix(1);
    }
    if (code.empty() || kKinds.find(code[0]) == kKinds.npos) return;
    const auto size = LineNumber(code.substr(1));
    if (code.size() > 1 &&
        (!size.has_value() || *size < 0 || *size > kMostItemBytes)) {
      return;
    }
    if (!IsTrue(items[2])) return;
    dtype_arguments_[op_] = {code[0], size.value_or(-1)};
  }
  if ((items.size() == 8 || items.size() == 9) && items[0].is(Kind::kNumber)) {
    dtype_states_[op_] = {
        .plain = std::all_of(items.begin() + 2, items.begin() + 5,
                             [&](Thing item) { return IsOpcode(item, kNone); }),
        .item_bytes = number(5),
        .flags = number(7)};
  }
}

// True, or 1.
bool Tracer::IsTrue(Thing thing) {
  const auto number = IntegerAt(thing);
  return IsOpcode(thing, kNewTrue) || (number.ok() && *number == 1);
}

// What joblib keeps in the wrapper of an array.
void Tracer::NoteSubclass(const std::vector<Thing>& items) {
  for (size_t i = 0; i + 1 < items.size(); i += 2) {
    if (!Is(array_class_, items[i + 1]) || !items[i].is(Kind::kText)) continue;
    const auto key = TextAt(items[i].at());
    if (key.ok() && *key == "subclass") ++array_class_.uses;
  }
}

// What a call of something of NumPy makes; nullopt for other calls.
std::optional<Thing> Tracer::NumpyCall(uint8_t opcode, Thing callee,
                                       Thing arguments) {
  if (!callee.is(Kind::kGlobal) || !IsNumpy(callee)) return std::nullopt;
  const bool has_tuple = opcode == kReduce && arguments.is(Kind::kTuple);
  if (Is(dtype_class_, callee) && has_tuple) {
    const auto found = dtype_arguments_.find(arguments.at());
    if (found != dtype_arguments_.end()) {
      ++dtype_class_.uses;
      dtypes_[op_] = found->second;
      return Thing(Kind::kDType, op_);
    }
  }
  if (names_[callee.at()].second == "_reconstruct") {
    if (has_tuple && array_arguments_ == arguments.at() &&
        unbuilt_.size() < kMostUnbuilt) {
      array_arguments_.reset();
      unbuilt_.push_back(op_);
      return Thing(Kind::kArray, op_);
    }
    Fault(Code::kUnsafe, "an array is not made as NumPy writes it");
  }
  return Thing(Kind::kNumpy, op_);
}

void Tracer::BuildDType(Thing dtype, Thing state) {
  const auto found = state.is(Kind::kTuple) ? dtype_states_.find(state.at())
                                            : dtype_states_.end();
  if (found != dtype_states_.end() && !found->second.plain) {
    trace_.doubt = "a type of NumPy with fields, which are not looked into";
    return;
  }
  const DTypeCode code = dtypes_[dtype.at()];
  const bool flexible =
      std::string_view("SUV").find(code.kind) != std::string_view::npos;
  const int64_t size = flexible ? ItemBytes(code) : -1;
  const auto fits = [&](const DTypeState& known) {
    if (known.item_bytes != size || !known.flags.has_value()) return false;
    return code.kind == 'O' ? known.flags == kObjectFlags
                            : (*known.flags & kReferenceFlags) == 0;
  };
  if (found == dtype_states_.end() || !fits(found->second)) {
    Fault(Code::kUnsafe,
          fmt::format("a type of NumPy gets a state that {}{} does not have",
                      Quote(std::string_view(&code.kind, 1)),
                      code.size < 0 ? "" : fmt::format(" of {}", code.size)));
  }
}

void Tracer::BuildArray(Thing array) {
  const auto found = std::ranges::find(unbuilt_, array.at());
  if (found == unbuilt_.end()) {
    Fault(Code::kUnsafe, "an array gets its state a second time");
    return;
  }
  unbuilt_.erase(found);
}

void Tracer::JudgeNumpy() {
  if (array_arguments_.has_value()) --array_class_.uses;
  for (const auto& [name, watched] :
       {std::pair("dtype", &dtype_class_), {"ndarray", &array_class_}}) {
    const auto unused = static_cast<uint64_t>(std::ranges::count_if(
        stack_, [&](Thing thing) { return Is(*watched, thing); }));
    if (watched->pushes == watched->uses + unused) continue;
    for (NamedGlobal& global : trace_.globals) {
      if (global.module == "numpy" && global.name == name) {
        global.allowed = false;
      }
    }
    FaultAt(watched->byte, Code::kUnsafe,
            fmt::format("global 'numpy.{}' is not allowed but as NumPy writes "
                        "it",
                        name));
  }
}

}  // namespace haulway::scan
