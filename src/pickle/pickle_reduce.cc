// Design: nothing is called. REDUCE, NEWOBJ or BUILD with a known constructor
// of data (a set, an OrderedDict, bytes, complex) is evaluated on values. Any
// other allowed callable becomes an Object, which holds the callable's name,
// its arguments and its state, for a format to interpret. Everything else ends
// the parse with the name and its byte, or is recorded as opaque if the caller
// wants to list the file.
//
// Alternatives not taken: PyTorch's weights_only unpickler imports allowed
// names and calls them; the engine has no Python. If every call became an
// Object, each format and binding would have to know how Python builds a set.

#include <fmt/format.h>

#include <vector>

#include "base/text.h"
#include "pickle/pickle_globals.h"
#include "pickle/pickle_machine.h"
#include "pickle/pickle_text.h"

namespace haulway::pickle {

namespace {

bool IsText(const Value& value) {
  return value.is(Kind::kString) || value.is(Kind::kRawString);
}

bool IsLatin1Name(const Value& value) {
  return IsText(value) &&
         (value.text() == "latin1" || value.text() == "latin-1");
}

bool IsNumber(const Value& value) {
  return value.is(Kind::kInt) || value.is(Kind::kFloat);
}

double ToDouble(const Value& value) {
  return value.is(Kind::kInt) ? static_cast<double>(value.integer())
                              : value.real();
}

// Returns whether Python reserves the attribute name: __class__, __dict__.
bool IsSpecialName(std::string_view name) {
  return name.size() > 4 && name.starts_with("__") && name.ends_with("__");
}

std::string FullName(const Global& global) {
  return Quote(fmt::format("{}.{}", global.module, global.name));
}

}  // namespace

Status Machine::MeetGlobal(std::string_view module, std::string_view name,
                           std::string_view key, Value* global) {
  KeyBudget budget = {~uint64_t{0}};
  const auto place = static_cast<uint32_t>(globals_met_.size());
  global_names_.push_back(Value::Text(Kind::kString, key));
  const uint32_t known =
      global_table_.Add(global_names_.back(), place, global_names_.data(),
                        sizeof(Value), seed_, &budget);
  if (known != KeyTable::kNew) {
    global_names_.pop_back();
    *global = Value::Of(globals_met_[known]);
  } else {
    if (module.empty() || name.empty() || !IsPickleText(key)) {
      return Fail(Code::kCorrupt,
                  fmt::format("{} of {}, {}: expected two names", op_name(),
                              Quote(module), Quote(name)));
    }
    const GlobalName renamed = RenameGlobal(module, name);
    const auto match = globals_.Find(renamed.module, renamed.name);
    auto* met = arena_.New<Global>();
    met->module = renamed.module;
    met->name = renamed.name;
    met->byte = op_byte();
    met->id = match.id;
    met->allowed = match.allowed;
    globals_met_.push_back(met);
    *global = Value::Of(met);
  }
  const Global* met = &global->global();
  result_.mentions.push_back({met, op_byte()});
  if (met->allowed || known != KeyTable::kNew) return {};
  const std::string_view needed = ImportThatAllows(met->module);
  return RefuseOpaque(fmt::format(
      "global {} is not allowed{}", FullName(*met),
      needed.empty() ? "" : fmt::format(" before `import {}`", needed)));
}

Status Machine::ReadGlobal(Value* global) {
  std::string_view module;
  std::string_view name;
  HAULWAY_TRY(ReadLine(&module));
  HAULWAY_TRY(ReadLine(&name));
  // Both lines with the newline between them, as a view of the file.
  const std::string_view key(module.data(), module.size() + 1 + name.size());
  return MeetGlobal(module, name, key, global);
}

Status Machine::StackGlobal() {
  if (available() < 2) return Underflow(2);
  if (!top_[-2].is(Kind::kString) || !top_[-1].is(Kind::kString)) {
    return Fail(
        Code::kCorrupt,
        fmt::format("STACK_GLOBAL of {} and {}: expected two names",
                    Describe(top_[-2].kind()), Describe(top_[-1].kind())));
  }
  const std::string_view module = top_[-2].text();
  const std::string_view name = top_[-1].text();
  if (module.find('\n') != module.npos || name.find('\n') != name.npos) {
    return Fail(Code::kCorrupt,
                fmt::format("STACK_GLOBAL of {}, {}: expected two names",
                            Quote(module), Quote(name)));
  }
  HAULWAY_TRY(Charge(module.size() + name.size()));
  const std::string_view key = arena_.Copy(fmt::format("{}\n{}", module, name));
  Value global;
  HAULWAY_TRY(MeetGlobal(module, name, key, &global));
  --top_;
  top_[-1] = global;
  return {};
}

Status Machine::BadArguments() const {
  return Fail(Code::kCorrupt,
              fmt::format("{} of plain data with arguments it does not take",
                          op_name()));
}

Status Machine::Reduce() {
  if (available() < 2) return Underflow(2);
  Value* callee = top_ - 2;
  uint16_t height = HeightAt(top_ - 1);
  Value result;
  HAULWAY_TRY(
      Apply(*callee, top_[-1], Value(), /*is_new=*/false, &result, &height));
  top_ = callee;
  PushContainer(result, height);
  return {};
}

Status Machine::NewObj(bool keywords) {
  const size_t count = keywords ? 3 : 2;
  if (available() < count) return Underflow(count);
  Value* callee = top_ - count;
  uint16_t height = HeightOver(callee + 1);
  Value kwargs;
  if (keywords) {
    kwargs = top_[-1];
    if (!kwargs.is(Kind::kDict)) {
      return Fail(Code::kCorrupt,
                  fmt::format("NEWOBJ_EX with keywords in {}: expected a dict",
                              Describe(kwargs.kind())));
    }
    if (kwargs.mapping().size == 0) kwargs = Value();
  }
  Value result;
  HAULWAY_TRY(
      Apply(*callee, callee[1], kwargs, /*is_new=*/true, &result, &height));
  top_ = callee;
  PushContainer(result, height);
  return {};
}

Status Machine::ApplyToMark(const Value& callee, Value* items, Value* place) {
  uint16_t height = HeightOver(items);
  const auto count = static_cast<size_t>(top_ - items);
  HAULWAY_TRY(CheckItems(count));
  const Value args = Value::Of(Kind::kTuple, NewSequence(items, count));
  Value result;
  HAULWAY_TRY(Apply(callee, args, Value(), /*is_new=*/false, &result, &height));
  top_ = place;
  PushContainer(result, height);
  return {};
}

Status Machine::Obj() {
  Value* items = nullptr;
  HAULWAY_TRY(PopMark(&items));
  if (items == top_) {
    return Fail(Code::kCorrupt, "OBJ without a class after its MARK");
  }
  return ApplyToMark(*items, items + 1, items);
}

Status Machine::Inst() {
  Value* items = nullptr;
  HAULWAY_TRY(PopMark(&items));
  Value callee;
  HAULWAY_TRY(ReadGlobal(&callee));
  return ApplyToMark(callee, items, items);
}

Status Machine::Apply(const Value& callee, const Value& args,
                      const Value& kwargs, bool is_new, Value* result,
                      uint16_t* height) {
  if (!args.is(Kind::kTuple)) {
    return Fail(Code::kCorrupt,
                fmt::format("{} with arguments in {}: expected a tuple",
                            op_name(), Describe(args.kind())));
  }
  Global* global = nullptr;
  if (callee.is(Kind::kGlobal)) {
    global = &callee.global();
    const GlobalKind kind = KindOf(*global);
    if (global->allowed && kind <= GlobalKind::kCodecsEncode) {
      // A class created by __new__ alone is empty, whatever the arguments.
      if (kwargs.is(Kind::kDict) ||
          (is_new && args.sequence().size != 0 &&
           (kind <= GlobalKind::kList || kind == GlobalKind::kSet ||
            kind == GlobalKind::kByteArray))) {
        return BadArguments();
      }
      return ApplyPlain(kind, args, result);
    }
    if (global->allowed && kind != GlobalKind::kUnknown && !IsCallable(kind)) {
      HAULWAY_TRY(Refuse(fmt::format("{} of {}, which is not to be called",
                                     op_name(), FullName(*global))));
    }
    if (kind == GlobalKind::kProcessAttribute) {
      return ApplyAttribute(args, is_new, result);
    }
    if (kind == GlobalKind::kProcessClass || kind == GlobalKind::kProcessEnum) {
      HAULWAY_TRY(CheckProcessCall(*global, kwargs, is_new));
    }
    if (kind == GlobalKind::kRebuildParameterWithState ||
        kind == GlobalKind::kRebuildFromType ||
        kind == GlobalKind::kRebuildFromTypeV2) {
      const auto items = args.sequence().items();
      if (items.size() > 3) HAULWAY_TRY(NoteState(items[3]));
    }
  } else if (callee.is(Kind::kObject)) {
    const std::string what = fmt::format(
        "{} calls what another call made: expected a global", op_name());
    HAULWAY_TRY(IsOpaque(callee) ? RefuseOpaque(what) : Refuse(what));
  } else if (ModuleClass(callee) != nullptr) {
    global = ModuleClass(callee);
  } else {
    return Fail(Code::kCorrupt,
                fmt::format("{} of {}: expected a global", op_name(),
                            Describe(callee.kind())));
  }
  auto* object = arena_.New<Object>();
  object->callable = global;
  object->called = callee;
  object->args = args;
  object->byte = op_byte();
  object->is_new = is_new;
  if (kwargs.is(Kind::kDict)) ExtrasOf(object)->kwargs = kwargs;
  *result = Value::Of(object);
  if (*height < kTallest) ++*height;
  tallest_ = std::max(tallest_, *height);
  return {};
}

// Fails for a class that would be called instead of made for a state, and for
// an enumeration that would be made instead of called.
Status Machine::CheckProcessCall(const Global& global, const Value& kwargs,
                                 bool is_new) {
  const bool is_class = KindOf(global) == GlobalKind::kProcessClass;
  if (is_new == is_class && !kwargs.is(Kind::kDict)) return {};
  return Refuse(fmt::format("{} of {}, which is not used so", op_name(),
                            FullName(global)));
}

// getattr(CLASS, NAME) is a name too.
Status Machine::ApplyAttribute(const Value& args, bool is_new, Value* result) {
  const auto items = args.sequence().items();
  if (is_new || items.size() != 2 || !items[0].is(Kind::kGlobal) ||
      !IsText(items[1]) ||
      !IsProcessAttribute(items[0].global(), items[1].text())) {
    return Refuse(
        fmt::format("{} of 'builtins.getattr', which may compute "
                    "anything",
                    op_name()));
  }
  const Global& of = items[0].global();
  HAULWAY_TRY(Charge(of.name.size() + items[1].text().size()));
  auto* met = arena_.New<Global>();
  *met = of;
  met->name = arena_.Copy(fmt::format("{}.{}", of.name, items[1].text()));
  met->byte = op_byte();
  *result = Value::Of(met);
  return {};
}

Status Machine::ApplyPlain(GlobalKind kind, const Value& args, Value* result) {
  switch (kind) {
    case GlobalKind::kOrderedDict:
      return ApplyMapping(Kind::kOrderedDict, args, result);
    case GlobalKind::kCounter:
      return ApplyMapping(Kind::kCounter, args, result);
    case GlobalKind::kDict:
      return ApplyMapping(Kind::kDict, args, result);
    case GlobalKind::kList:
      return ApplySequence(Kind::kList, args, result);
    case GlobalKind::kTuple:
      return ApplySequence(Kind::kTuple, args, result);
    case GlobalKind::kSet:
      return ApplySequence(Kind::kSet, args, result);
    case GlobalKind::kFrozenSet:
      return ApplySequence(Kind::kFrozenSet, args, result);
    case GlobalKind::kByteArray:
      return ApplyBytes(Kind::kByteArray, args, result);
    case GlobalKind::kComplex:
      return ApplyComplex(args, result);
    case GlobalKind::kCodecsEncode:
      if (args.sequence().size != 2) return BadArguments();
      [[fallthrough]];
    default:
      return ApplyBytes(Kind::kBytes, args, result);
  }
}

Status Machine::ApplySequence(Kind kind, const Value& args, Value* result) {
  const auto items = args.sequence().items();
  if (items.size() > 1) return BadArguments();
  std::span<const Value> from;
  if (items.size() == 1) {
    if (!items[0].is_sequence()) return BadArguments();
    from = items[0].sequence().items();
  }
  Sequence* made = nullptr;
  if (kind == Kind::kSet || kind == Kind::kFrozenSet) {
    made = arena_.New<Sequence>();
    HAULWAY_TRY(AddToSet(made, from.data(), from.size()));
  } else {
    HAULWAY_TRY(Charge(0));
    made = NewSequence(from.data(), from.size());
  }
  *result = Value::Of(kind, made);
  return {};
}

Status Machine::ApplyMapping(Kind kind, const Value& args, Value* result) {
  auto* made = arena_.New<Mapping>();
  *result = Value::Of(kind, made);
  const auto items = args.sequence().items();
  if (items.empty()) return {};
  if (items.size() > 1) return BadArguments();

  const Value& from = items[0];
  std::vector<Value> pairs;
  if (from.is_mapping()) {
    HAULWAY_TRY(Charge(from.mapping().size));
    pairs.reserve(size_t{from.mapping().size} * 2);
    for (const MappingItem& item : from.mapping().items()) {
      pairs.push_back(item.key);
      pairs.push_back(item.value);
    }
  } else if ((from.is(Kind::kList) || from.is(Kind::kTuple)) &&
             kind != Kind::kCounter) {
    HAULWAY_TRY(Charge(from.sequence().size));
    pairs.reserve(size_t{from.sequence().size} * 2);
    for (const Value& pair : from.sequence().items()) {
      if ((!pair.is(Kind::kTuple) && !pair.is(Kind::kList)) ||
          pair.sequence().size != 2) {
        return BadArguments();
      }
      pairs.push_back(pair.sequence().data[0]);
      pairs.push_back(pair.sequence().data[1]);
    }
  } else {
    return BadArguments();
  }
  return SetPairs(made, pairs.data(), pairs.size() / 2);
}

Status Machine::ApplyBytes(Kind kind, const Value& args, Value* result) {
  const auto items = args.sequence().items();
  std::string_view bytes;
  if (items.size() == 1 &&
      (items[0].is(Kind::kBytes) || items[0].is(Kind::kByteArray))) {
    bytes = items[0].text();
  } else if (items.size() == 2 && items[0].is(Kind::kString) &&
             IsLatin1Name(items[1])) {
    HAULWAY_TRY(Charge(items[0].text().size()));
    const auto encoded = EncodeLatin1(items[0].text(), arena_);
    if (!encoded) {
      return Fail(Code::kCorrupt,
                  fmt::format("{} of text that is not latin-1", op_name()));
    }
    bytes = *encoded;
  } else if (!items.empty()) {
    return BadArguments();
  }
  if (kind == Kind::kByteArray) {
    // A bytearray's identity is its address, so each needs its own memory.
    HAULWAY_TRY(Charge(bytes.size()));
    auto* own = static_cast<char*>(arena_.Allocate(bytes.size() + 1));
    bytes = {own, bytes.copy(own, bytes.size())};
  }
  *result = Value::Text(kind, bytes);
  return {};
}

Status Machine::ApplyComplex(const Value& args, Value* result) {
  const auto items = args.sequence().items();
  if (items.size() > 2) return BadArguments();
  auto* parts = static_cast<double*>(arena_.Allocate(2 * sizeof(double)));
  parts[0] = parts[1] = 0;
  for (size_t i = 0; i < items.size(); ++i) {
    if (!IsNumber(items[i])) return BadArguments();
    parts[i] = ToDouble(items[i]);
  }
  *result = Value::Complex(parts);
  return {};
}

Global* Machine::ModuleClass(const Value& callee) {
  if (!callee.is(Kind::kPersistent)) return nullptr;
  const Value& id = callee.persistent_id();
  if (!id.is(Kind::kTuple) || id.sequence().size != 4) return nullptr;
  const Value* parts = id.sequence().data;
  if (!IsText(parts[0]) || parts[0].text() != "module") return nullptr;
  return parts[1].is(Kind::kGlobal) ? &parts[1].global() : nullptr;
}

ObjectExtras* Machine::ExtrasOf(Object* object) {
  if (object->extras == nullptr) object->extras = arena_.New<ObjectExtras>();
  return object->extras;
}

Status Machine::Build() {
  if (available() < 2) return Underflow(2);
  const Value state = top_[-1];
  Value* target = top_ - 2;
  const uint16_t height = HeightOver(top_ - 1);
  NoteChange(*target);

  Value* slot = nullptr;
  if (target->is(Kind::kObject)) {
    slot = &target->object().state;
  } else if (target->is(Kind::kOrderedDict) || target->is(Kind::kCounter)) {
    slot = &target->mapping().state;
    const bool pair = state.is(Kind::kTuple) && state.sequence().size == 2;
    if (!state.is_mapping() && !state.is(Kind::kNone) && !pair) {
      return Fail(
          Code::kCorrupt,
          fmt::format("BUILD of {} with {}: expected a dict",
                      Describe(target->kind()), Describe(state.kind())));
    }
  }
  if (slot == nullptr) {
    const std::string what = fmt::format("BUILD of {}: expected an object",
                                         Describe(target->kind()));
    if (target->kind() < Kind::kGlobal) return Fail(Code::kCorrupt, what);
    HAULWAY_TRY(IsOpaque(*target) ? RefuseOpaque(what) : Refuse(what));
    --top_;
    return {};
  }
  // No pickler sets a state twice, and the effect of a second one depends on
  // the class.
  if (!slot->is(Kind::kNone)) {
    return Fail(Code::kCorrupt, "BUILD of an object that has a state already");
  }
  // The state of an object that is never created is not kept.
  if (!options_.keep_opaque || !IsOpaque(*target)) {
    HAULWAY_TRY(NoteState(state));
  }
  *slot = state;
  Raise(target, height);
  --top_;
  return {};
}

Status Machine::NoteState(const Value& state) {
  if (!state.is_mapping() && !state.is(Kind::kTuple)) return {};
  states_.push_back({state, op_byte()});
  return CheckState(state);
}

Status Machine::CheckState(const Value& state) {
  if (state.is_mapping()) return CheckStateKeys(state);
  // A state may be a tuple of attributes and slots.
  if (!state.is(Kind::kTuple) || state.sequence().size != 2) return {};
  for (const Value& part : state.sequence().items()) {
    if (part.is_mapping()) HAULWAY_TRY(CheckStateKeys(part));
  }
  return {};
}

Status Machine::CheckStateKeys(const Value& state) {
  HAULWAY_TRY(Charge(state.mapping().size));
  for (const MappingItem& item : state.mapping().items()) {
    if ((IsText(item.key) || item.key.is(Kind::kBytes)) &&
        IsSpecialName(item.key.text())) {
      HAULWAY_TRY(Refuse(fmt::format("state sets the special attribute {}",
                                     Quote(item.key.text()))));
    }
  }
  return {};
}

}  // namespace haulway::pickle
