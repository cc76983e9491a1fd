// Traces calls of allowed names that act on their arguments.
//
// Most names that a pickle may call only describe data, whatever the arguments
// are. A few take a class, a function, or the name of a codec, which Python
// imports. A few return what they were given, so that a class or an enumeration
// member looks like the result of a call. NumPy's number types convert any
// object that has the attribute __array_interface__, which may name an address;
// they may be called with numbers and texts only, and stand as values only
// where no text is, or could be, the name of that attribute.
//
// Design: picklers write the tuple of arguments right before the call, so the
// tracer keeps the items of the last tuple. A call with another tuple is a
// fault, as is one whose arguments are not as picklers write them. Alternative
// not taken: keep the items of all tuples. That costs a hundred bytes for each
// shape of a tensor.

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "base/text.h"
#include "pickle/pickle_opcodes.h"
#include "scan/tracer.h"

namespace haulway::scan {

namespace {

using namespace haulway::pickle;  // Opcodes.

// Codecs that Python has without an import, as picklers spell them.
constexpr std::string_view kCodecs[] = {"latin1", "latin-1", "iso-8859-1",
                                        "utf-8",  "utf8",    "ascii"};

// NumPy takes the data of an object from the address in this attribute.
constexpr std::string_view kAddress = "__array_interface__";
// The attribute by which Python changes the class of an object.
constexpr std::string_view kClassName = "__class__";

}  // namespace

bool Tracer::IsPlain(Thing thing) const {
  if (thing.is(Kind::kNumber) || thing.is(Kind::kText)) return true;
  constexpr uint8_t kPlain[] = {kNone,     kNewTrue,       kNewFalse,
                                kBinFloat, kFloat,         kLong4,
                                kBinBytes, kShortBinBytes, kBinBytes8};
  return std::ranges::any_of(
      kPlain, [&](uint8_t opcode) { return IsOpcode(thing, opcode); });
}

bool Tracer::IsTextClass(Thing thing) const {
  if (!thing.is(Kind::kGlobal)) return false;
  const std::string_view name = names_[thing.at()].second;
  return cares_[thing.at()] == Care::kCodec &&
         (name == "str" || name == "str_");
}

void Tracer::NoteText(const Line& line) {
  const bool is_plain = line.text.find('\\') == line.text.npos;
  for (const auto& [name, named] : {std::pair(kAddress, &names_address_),
                                    std::pair(kClassName, &names_class_)}) {
    if (*named) continue;
    if (is_plain) {
      *named = line.text == name || line.text == fmt::format("'{}'", name) ||
               line.text == fmt::format("\"{}\"", name);
      continue;
    }
    // An escaped text of that content begins with it, or with an escape.
    const size_t begin = line.text.find_first_not_of("'\"");
    if (begin == line.text.npos ||
        (line.text[begin] != '_' && line.text[begin] != '\\')) {
      return;
    }
    const auto text = TextAt(op_);
    *named = text.ok() && text->has_value() && **text == name;
  }
}

Status Tracer::NoteText(uint64_t at, uint64_t length) {
  if (ended_ || (length != kAddress.size() && length != kClassName.size())) {
    return Status();
  }
  HAULWAY_ASSIGN(const auto bytes, window_.Peek(at, length));
  const std::string_view text = TextOf(bytes).substr(0, length);
  names_address_ = names_address_ || text == kAddress;
  names_class_ = names_class_ || text == kClassName;
  return Status();
}

// torch and BUILD set the attributes that a state names, and so an object's
// class. Only a text can name it.
void Tracer::JudgeClass() {
  if (!sets_attributes_ || (!names_class_ && !computes_text_)) return;
  trace_.doubt = fmt::format(
      "attributes are set beside {}, which may change the class of an object",
      names_class_ ? Quote(kClassName) : "texts that are computed");
}

// A number type that stands as a value may become an attribute, and be called
// as such with any object.
void Tracer::JudgeNumbers() {
  if (number_pushes_ == number_calls_) return;
  if (names_address_) {
    FaultAt(0, Code::kUnsafe,
            fmt::format("a number type of NumPy beside {}, which names an "
                        "address to it",
                        Quote(kAddress)));
  } else if (computes_text_) {
    trace_.doubt = "a number type of NumPy beside texts that are computed";
  }
}

void Tracer::CheckCallable(Thing thing) {
  if (ended_ || thing.is(Kind::kGlobal)) return;
  if (thing.is_made()) {
    Fault(Code::kUnsafe, "what is called is no name, but was made by a call");
    return;
  }
  // Nothing else can be called. An extension already caused a fault.
  if (trace_.faults.empty()) Broken("what is called is no name");
}

void Tracer::ExecuteCall(uint8_t opcode) {
  Thing arguments;
  Thing callee;
  std::vector<Thing> items;  // Arguments of OBJ.
  if (opcode == kObj) {
    if (marks_.empty() || stack_.size() == marks_.back()) {
      Broken("OBJ has no class");
      return;
    }
    callee = stack_[marks_.back()];
    items = PopMark();
    if (!items.empty()) items.erase(items.begin());
  } else {
    arguments = Pop();
    if (opcode == kNewObjEx) arguments = Pop();
    callee = Pop();
  }
  CheckCallable(callee);
  if (ended_) return;
  if (opcode == kNewObjEx) CheckKeywords(callee);
  const std::vector<Thing>* const known =
      opcode == kObj ? &items : ArgumentsOf(arguments);
  if (const auto made = CarefulCall(opcode, callee, known)) {
    Push(*made);
    return;
  }
  if (opcode == kNewObj && Is(wrapper_class_, callee) && known != nullptr &&
      known->empty()) {
    ++wrapper_class_.uses;
  }
  if (const auto made = NumpyCall(opcode, callee, arguments)) {
    Push(*made);
    return;
  }
  const bool takes_member = opcode == kReduce && IsGetattr(callee) &&
                            arguments.is(Kind::kTuple) &&
                            members_.contains(arguments.at());
  if (takes_member) ++getattr_calls_;
  if (takes_member || IsEnumerationHere(callee)) {
    Push(Kind::kMember);
    return;
  }
  const bool makes = opcode != kReduce && callee.is(Kind::kGlobal);
  Push(makes ? Thing(Kind::kInstance, callee.at()) : Thing(Kind::kObject, op_));
}

// Reports a fault for keyword arguments: allowed names are safe with any
// positional arguments, but torch accepts addresses of objects as keywords.
void Tracer::CheckKeywords(Thing callee) {
  if (!callee.is(Kind::kGlobal)) return;
  const auto& [module, name] = names_[callee.at()];
  if (options_.names->IsCallers(module, name)) return;
  Fault(Code::kUnsafe, fmt::format("{} would be called with keywords",
                                   Quote(fmt::format("{}.{}", module, name))));
}

// Returns the items of an argument tuple; null if they are not known.
const std::vector<Thing>* Tracer::ArgumentsOf(Thing arguments) {
  static const std::vector<Thing> kNone;
  if (!arguments.is(Kind::kTuple)) return nullptr;
  if (arguments.at() == last_tuple_.at) {
    return last_tuple_.whole ? &last_tuple_.items : nullptr;
  }
  std::array<std::byte, 1> opcode;
  const bool is_empty = source_.ReadAt(arguments.at(), opcode).ok() &&
                        static_cast<uint8_t>(opcode[0]) == kEmptyTuple;
  return is_empty ? &kNone : nullptr;
}

bool Tracer::TakesKnownCodec(const std::vector<Thing>& arguments) {
  if (arguments.size() < 2) return true;
  const Thing codec = arguments[1];
  if (!codec.is(Kind::kText)) return false;
  if (!last_codec_.has_value() || last_codec_->first != codec.at()) {
    const auto text = TextAt(codec.at());
    const bool known = text.ok() && text->has_value() &&
                       std::ranges::find(kCodecs, **text) != std::end(kCodecs);
    last_codec_ = {codec.at(), known};
  }
  return last_codec_->second;
}

// Returns what the call returns; nullopt if the arguments do not matter.
// `arguments` may be null.
std::optional<Thing> Tracer::CarefulCall(uint8_t opcode, Thing callee,
                                         const std::vector<Thing>* arguments) {
  if (!callee.is(Kind::kGlobal) || cares_[callee.at()] == Care::kNone) {
    return std::nullopt;
  }
  if (IsCarefulFunction(callee)) ++careful_calls_;
  const Care care = cares_[callee.at()];
  const auto& [module, name] = names_[callee.at()];
  const auto fault = [&](std::string_view what) {
    Fault(
        Code::kUnsafe,
        fmt::format("{} {}", Quote(fmt::format("{}.{}", module, name)), what));
    return Thing(Kind::kObject, op_);
  };
  if (care == Care::kEmpty) {
    if (opcode == kNewObj) return std::nullopt;
    return fault("would be called, not only made for a state");
  }
  if (arguments == nullptr) {
    return fault("would be called with arguments that are not known");
  }
  if (care == Care::kNumber) {
    ++number_calls_;
    if (std::ranges::all_of(*arguments,
                            [&](Thing item) { return IsPlain(item); })) {
      return std::nullopt;
    }
    return fault("would convert what is neither a number nor a text");
  }
  if (care == Care::kCodec) {
    if (IsTextClass(callee) &&
        (arguments->size() > 1 ||
         !std::ranges::all_of(
             *arguments, [](Thing item) { return item.is(Kind::kText); }))) {
      computes_text_ = true;
    }
    if (TakesKnownCodec(*arguments)) return std::nullopt;
    return fault("would import the codec that its argument names");
  }
  if (arguments->empty()) return std::nullopt;  // The call fails.
  const Thing first = arguments->front();
  if (care == Care::kSame) return first;
  if (!first.is(Kind::kGlobal)) {
    return fault("would use a class or function that is not known by its name");
  }
  if (care == Care::kMakes) {
    // _reconstructor() calls __new__ and __init__ of its second argument.
    if (name == "_reconstructor" && arguments->size() > 1 &&
        !(*arguments)[1].is(Kind::kGlobal)) {
      return fault("would call methods of what is no class");
    }
    computes_text_ = computes_text_ || IsTextClass(first);
    if (IsEnumerationHere(first)) return Thing(Kind::kMember, op_);
    if (cares_[first.at()] == Care::kNone) return std::nullopt;
    const std::vector<Thing> rest(arguments->begin() + 1, arguments->end());
    if (cares_[first.at()] == Care::kCodec && TakesKnownCodec(rest)) {
      return std::nullopt;
    }
    return fault("would make an object by arguments that are not known");
  }
  // torch writes calls of its own functions with this prefix.
  const auto& [called_module, called] = names_[first.at()];
  const bool is_torchs = called_module.starts_with("torch.") &&
                         called.starts_with("_rebuild_") &&
                         cares_[first.at()] == Care::kNone;
  if (is_torchs || options_.names->IsCallers(called_module, called)) {
    return std::nullopt;
  }
  return fault(fmt::format("would call {}",
                           Quote(fmt::format("{}.{}", called_module, called))));
}

// Reports a fault if such a function is used other than in an immediate call:
// it could be called later, e.g. as the attribute '__setstate__' or 'append' of
// an object.
void Tracer::JudgeCareful() {
  if (trace_.end != TraceEnd::kStop || careful_pushes_ == careful_calls_) {
    return;
  }
  for (const NamedGlobal& global : trace_.globals) {
    const auto place =
        name_places_.find(fmt::format("{}.{}", global.module, global.name));
    if (place == name_places_.end() ||
        !IsCarefulFunction(Thing(Kind::kGlobal, place->second))) {
      continue;
    }
    FaultAt(
        global.byte, Code::kUnsafe,
        fmt::format("{} is not called where it is named", Quote(place->first)));
    return;
  }
}

}  // namespace haulway::scan
