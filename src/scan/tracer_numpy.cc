// Traces what a pickle does with NumPy's classes.
//
// NumPy trusts the state of a dtype: its flags say whether elements are numbers
// or addresses of objects, its size how far to read. And an array that gets a
// state twice frees its memory while others still use it. So a pickle that
// names only harmless classes could read any byte of the process.
//
// Design: the tracer accepts dtypes and arrays only in the form in which NumPy
// writes them. A dtype is numpy.dtype('f8', False, True) with the flags and the
// size of its kind; an array is _reconstruct(numpy.ndarray, (0,), b'b') and
// gets a state once. Every other use of the two classes is a fault. Counting
// finds these: each push of a class on the stack must be consumed by such a
// call.
//
// Fields must lie within their dtype and hold no objects, otherwise the dtype
// is not known to be safe. NumPy keeps the dict with the positions of the
// fields, so nothing else may hold that dict. A caller who allows more names of
// NumPy, such as those of masked arrays, which use the two classes in their own
// way, is responsible for what they do.

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "base/text.h"
#include "pickle/pickle_opcodes.h"
#include "scan/tracer.h"

namespace haulway::scan {

namespace {

using namespace haulway::pickle;  // Opcodes.

// From numpy/dtype_api.h: the flags of the object dtype; and the flags for
// references, pointers, and elements that getitem and setitem access.
constexpr int64_t kObjectFlags = 0x3F;
constexpr int64_t kReferenceFlags = 0x67;
// Limit on arrays that wait for their state: as many as are nested.
constexpr size_t kMostUnbuilt = 1'000;

// Limit on the digits of a size: it must fit into an int.
constexpr size_t kMostDigits = 10;
constexpr std::string_view kKinds = "?biufcmMOSUV";

}  // namespace

void Tracer::NoteNumpyName(std::string_view full, uint64_t place) {
  numpy_ = true;
  numpy_is_callers_ =
      numpy_is_callers_ || !IsNumpy(Thing(Kind::kGlobal, place));
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

// Returns whether `thing` is the result of that opcode alone, e.g. None.
bool Tracer::IsOpcode(Thing thing, uint8_t opcode) const {
  std::array<std::byte, 1> found;
  return thing.is(Kind::kOther) && source_.ReadAt(thing.at(), found).ok() &&
         static_cast<uint8_t>(found[0]) == opcode;
}

void Tracer::NotePush(Thing thing) {
  if (Is(dtype_class_, thing)) ++dtype_class_.pushes;
  if (Is(array_class_, thing)) ++array_class_.pushes;
  if (Is(wrapper_class_, thing)) ++wrapper_class_.pushes;
  if (thing.at() == op_) return;
  // A value from the memo could be in two places.
  if (thing.is(Kind::kTuple)) {
    const auto state = dtype_states_.find(thing.at());
    if (array_arguments_ == thing.at() ||
        (state != dtype_states_.end() &&
         state->second.of == DTypeState::Of::kFields)) {
      Fault(Code::kUnsafe, "parts of an array are used twice");
    }
  } else if (thing.is(Kind::kDict)) {
    // If another object holds the dict, its changes apply here too.
    if (joblib_) facts_[thing.at()].odd = true;
    if (!numpy_) return;
    const auto fields = fields_.find(thing.at());
    if (fields == fields_.end()) {
      shared_.insert(thing.at());
    } else if (fields->second.used) {
      Fault(Code::kUnsafe, "the fields of a type are used twice");
    } else {
      fields->second.odd = true;
    }
  }
}

void Tracer::NoteNumpyTuple(const std::vector<Thing>& items) {
  if (items.size() == 1) {
    const auto number = IntegerAt(items[0]);
    if (number.ok() && *number == 0) empty_shapes_.insert(op_);
  }
  if (items.size() == 3 && Is(array_class_, items[0]) &&
      items[1].is(Kind::kTuple) && empty_shapes_.contains(items[1].at()) &&
      !array_arguments_.has_value()) {
    array_arguments_ = op_;
    ++array_class_.uses;
  }
  if (dtype_class_.place.has_value()) NoteDTypeParts(items);
}

void Tracer::NoteDTypeParts(const std::vector<Thing>& items) {
  // The arguments are 'f8', no alignment, and a copy. Only a copy may get a
  // state.
  if (items.size() == 3 && items[0].is(Kind::kText)) {
    const auto text = TextAt(items[0].at());
    if (!text.ok() || !text->has_value()) return;
    std::string_view code = **text;
    if (!code.empty() && std::string_view("<>=|").find(code[0]) != code.npos) {
      code.remove_prefix(1);
    }
    // 'c' alone is a text of one byte.
    if (!code.empty() && code != "c" && kKinds.find(code[0]) != kKinds.npos &&
        code.find_first_not_of("0123456789", 1) == code.npos &&
        code.size() <= kMostDigits && IsTrue(items[2])) {
      dtype_arguments_[op_] = {code[0],
                               LineNumber(code.substr(1)).value_or(-1)};
    }
  }
  if (std::ranges::all_of(items,
                          [](Thing item) { return item.is(Kind::kText); })) {
    texts_[op_] = items;
  }
  int64_t product = 1;
  const bool are_numbers = std::ranges::all_of(items, [&](Thing item) {
    const auto number = IntegerAt(item);
    return number.ok() && number->has_value() && **number >= 0 &&
           !__builtin_mul_overflow(product, **number, &product);
  });
  if (are_numbers) numbers_ = {op_, product};
  if ((items.size() == 2 || items.size() == 3) && items[0].is(Kind::kDType)) {
    const DTypeCode code = dtypes_[items[0].at()];
    const int64_t bytes = ItemBytes(code);
    const auto offset = IntegerAt(items[1]);
    int64_t end = 0;
    if (code.kind == 'O' || bytes < 0 || !offset.ok()) return;
    if (offset->has_value()) {
      if (**offset >= 0 && !__builtin_add_overflow(**offset, bytes, &end)) {
        field_ends_[op_] = end;
      }
    } else if (items.size() == 2 && items[1].is(Kind::kTuple) &&
               numbers_.has_value() && numbers_->first == items[1].at() &&
               !__builtin_mul_overflow(numbers_->second, bytes, &end)) {
      within_[op_] = end;
    }
  }
  if ((items.size() == 8 || items.size() == 9) && items[0].is(Kind::kNumber)) {
    dtype_states_[op_] = StateOf(items);
  }
}

// Reads a state: (version, byte order, inner type, names, fields, size,
// alignment, flags).
Tracer::DTypeState Tracer::StateOf(const std::vector<Thing>& items) {
  using Of = DTypeState::Of;
  const auto number = [&](Thing thing) -> std::optional<int64_t> {
    const auto found = IntegerAt(thing);
    return found.ok() ? *found : std::nullopt;
  };
  const auto none = [&](size_t i) { return IsOpcode(items[i], kNone); };
  DTypeState state{.item_bytes = number(items[5]), .flags = number(items[7])};
  if (none(3) && none(4)) {
    const auto within = within_.find(items[2].at());
    if (none(2)) {
      state.of = Of::kNumbers;
    } else if (items[2].is(Kind::kTuple) && within != within_.end()) {
      state.of = Of::kArray;
      state.end = within->second;
    }
    return state;
  }
  const auto names = texts_.find(items[3].at());
  const auto fields = fields_.find(items[4].at());
  if (!none(2) || !items[3].is(Kind::kTuple) || names == texts_.end() ||
      !items[4].is(Kind::kDict) || fields == fields_.end()) {
    return state;
  }
  fields->second.used = true;
  const bool are_there = std::ranges::all_of(names->second, [&](Thing name) {
    const auto text = TextAt(name.at());
    return text.ok() && text->has_value() &&
           fields->second.names.contains(**text);
  });
  if (are_there && !fields->second.odd) {
    state.of = Of::kFields;
    state.end = fields->second.end;
  }
  return state;
}

// Returns whether `thing` is True or 1.
bool Tracer::IsTrue(Thing thing) {
  const auto number = IntegerAt(thing);
  return IsOpcode(thing, kNewTrue) || (number.ok() && *number == 1);
}

// Records the fields of a dtype, or the items of joblib's array wrapper.
// `items` is empty if there are too many.
void Tracer::NoteNumpyItems(Thing dict, const std::vector<Thing>& items) {
  const auto known = fields_.find(dict.at());
  const bool is_known = dict.is(Kind::kDict) && known != fields_.end();
  if (is_known && items.empty()) known->second.odd = true;
  for (size_t i = 0; i + 1 < items.size(); i += 2) {
    const auto key = items[i].is(Kind::kText)
                         ? TextAt(items[i].at())
                         : Result<std::optional<std::string>>(std::nullopt);
    if (!key.ok()) continue;
    if (Is(array_class_, items[i + 1]) && *key == "subclass") {
      ++array_class_.uses;
    }
    const auto field = field_ends_.find(items[i + 1].at());
    if (!items[i + 1].is(Kind::kTuple) || field == field_ends_.end()) {
      if (is_known) known->second.odd = true;
      continue;
    }
    if (!dict.is(Kind::kDict)) continue;
    const auto [place, added] = fields_.try_emplace(dict.at());
    Fields& fields = place->second;
    if (added) {
      fields.odd =
          shared_.contains(dict.at()) || dict.at() < begin_ + dtype_class_.byte;
    }
    fields.end = std::max(fields.end, field->second);
    if (key->has_value()) fields.names.insert(**key);
  }
}

// Returns the result of a call of a NumPy global; nullopt for other calls.
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
  if (names_[callee.at()].second == "scalar") NoteScalar(arguments);
  if (numpy_is_callers_) return std::nullopt;
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

// A scalar of a text type is a text that no opcode contains.
void Tracer::NoteScalar(Thing arguments) {
  constexpr int64_t kAddressLetters = 19;  // Of "__array_interface__".
  const std::vector<Thing>* const items = ArgumentsOf(arguments);
  const bool is_short = items != nullptr && !items->empty() &&
                        items->front().is(Kind::kDType) &&
                        (dtypes_[items->front().at()].kind != 'U' ||
                         dtypes_[items->front().at()].size < kAddressLetters);
  computes_text_ = computes_text_ || !is_short;
}

void Tracer::BuildDType(Thing dtype, Thing state) {
  if (numpy_is_callers_) return;
  using Of = DTypeState::Of;
  const auto found = state.is(Kind::kTuple) ? dtype_states_.find(state.at())
                                            : dtype_states_.end();
  if (found != dtype_states_.end() && found->second.of == Of::kUnclear) {
    trace_.doubt = "a type of NumPy whose fields are not looked into";
    return;
  }
  const DTypeCode code = dtypes_[dtype.at()];
  const auto fits = [&](const DTypeState& known) {
    if (!known.flags.has_value()) return false;
    if (code.kind == 'O') {
      return known.of == Of::kNumbers && known.item_bytes == -1 &&
             known.flags == kObjectFlags;
    }
    if ((*known.flags & kReferenceFlags) != 0) return false;
    const bool flexible =
        std::string_view("SUV").find(code.kind) != std::string_view::npos;
    const int64_t size = flexible ? std::max<int64_t>(ItemBytes(code), 0) : -1;
    return known.item_bytes == size &&
           (known.of == Of::kNumbers ||
            (code.kind == 'V' && known.end <= size));
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
  if (numpy_is_callers_) return;
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
