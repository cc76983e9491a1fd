// Traces the names that a pickle mentions: which global an opcode names, and
// whether a pickle may name it.

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/text.h"
#include "haulway/tree.h"
#include "pickle/pickle_globals.h"
#include "pickle/pickle_opcodes.h"
#include "pickle/pickle_text.h"
#include "scan/tracer.h"

namespace haulway::scan {

namespace {

using namespace haulway::pickle;  // Opcodes.

// Bytes that cannot be in a file name, or not in one that a text could name.
constexpr std::string_view kNoFile("/\0", 2);

// Returns whether `module` is not a usual module name, but prose or numbers.
// Python could still import all but a few of these if someone created such a
// file.
bool IsNoModule(std::string_view module) {
  static constexpr std::string_view kNever = " ()[]{}:;,=\"'#*!?/\\`&|\x7F";
  return module.empty() || !IsUtf8(module) ||
         std::ranges::any_of(module, [](char c) {
           return static_cast<unsigned char>(c) < ' ' ||
                  kNever.find(c) != kNever.npos;
         });
}

}  // namespace

// Adds a name, resolved by the rules of the pickle's protocol.
void Tracer::Mention(std::string_view module, std::string_view name) {
  GlobalName resolved{module, name};
  if (protocol_ < 3) {
    resolved = RenameGlobal(module, name);
  } else if (module == "torch.tensor") {
    // torch.load() renames it at every protocol.
    resolved.module = "torch._tensor";
  }
  std::string full = fmt::format("{}.{}", resolved.module, resolved.name);
  bool allowed = options_.names->Allows(resolved.module, resolved.name);
  const bool is_getattr = !allowed && full == "builtins.getattr";
  const auto [place, added] = name_places_.try_emplace(full, names_.size());
  if (added) {
    names_.emplace_back(resolved.module, resolved.name);
    cares_.push_back(CareOf(resolved.module, resolved.name));
    careful_ = careful_ || cares_.back() != Care::kNone;
  }
  if (is_getattr) {
    // JudgeGetattr() decides at the end how it was used.
    allowed = true;
    if (!getattr_.has_value()) getattr_byte_ = op_ - begin_;
    getattr_ = place->second;
  }
  if (names_.size() > kMostGlobals) {
    End(TraceEnd::kUnclear,
        fmt::format("more than {} different names", kMostGlobals));
  }
  ++trace_.global_count;
  if (trace_.globals.size() < kMostGlobals && letters_ < kMostLetters) {
    letters_ += full.size();
    trace_.globals.push_back(
        {std::string(resolved.module), std::string(resolved.name),
         fmt::format("{}.{}", module, name), op_ - begin_, allowed});
  }
  if (!allowed) {
    Fault(Code::kUnsafe, fmt::format("global {} is not allowed", Quote(full)));
  }
  sets_attributes_ = sets_attributes_ ||
                     full == "torch._utils._rebuild_parameter_with_state" ||
                     full == "torch._tensor._rebuild_from_type_v2";
  if (resolved.module.starts_with("numpy")) NoteNumpyName(full, place->second);
  if (options_.arrays && full == "joblib.numpy_pickle.NumpyArrayWrapper") {
    joblib_ = true;
    if (!wrapper_class_.place.has_value()) wrapper_class_.byte = op_ - begin_;
    wrapper_class_.place = place->second;
  }
  Push(Thing(Kind::kGlobal, place->second));
}

// Reads the two lines of GLOBAL and INST.
Status Tracer::MentionLines() {
  HAULWAY_ASSIGN(const Line module, ReadLine());
  if (ended_) return Status();
  // Prose often begins with the letter of this opcode, but never with a
  // protocol.
  const bool prose = protocol_ < 2 && IsNoModule(module.text);
  if (prose && (module.text.empty() || !IsUtf8(module.text) || !module.whole ||
                module.text.find_first_of(kNoFile) != module.text.npos)) {
    Broken("the name of a module is none");
    return Status();
  }
  HAULWAY_ASSIGN(const Line name, ReadLine());
  if (ended_) return Status();
  if (prose) {
    if (IsUtf8(name.text)) trace_.prose = module.text;
    Broken("the name of a module is none");
    return Status();
  }
  if (!IsUtf8(name.text)) {
    Broken("a name is not UTF-8");
    return Status();
  }
  Mention(module.text, name.text);
  return Status();
}

void Tracer::MentionExtension(uint64_t code) {
  if (ended_) return;
  // Tensor data often begins with these bytes. A pickle with extensions
  // declares its protocol first.
  if (protocol_ < 2) {
    Broken("an extension before its protocol");
    return;
  }
  Fault(Code::kUnsafe,
        fmt::format("extension {} stands for a name that only the reading "
                    "process knows",
                    code));
  ++trace_.global_count;
  if (trace_.globals.size() < kMostGlobals) {
    const std::string name = fmt::format("extension {}", code);
    trace_.globals.push_back(
        {"copyreg", name, "copyreg." + name, op_ - begin_, false});
  }
  Push(Kind::kOther);
}

Status Tracer::ExecuteName(uint8_t opcode) {
  switch (opcode) {
    case kGlobal:
      return MentionLines();
    case kInst: {
      HAULWAY_TRY(MentionLines());
      if (ended_ || cut_) return Status();
      const Thing made = Pop();
      const std::vector<Thing> items = PopMark();
      if (const auto careful = CarefulCall(opcode, made, &items)) {
        Push(*careful);
        return Status();
      }
      Push(Thing(IsEnumerationHere(made) ? Kind::kMember : Kind::kInstance,
                 made.at()));
      return Status();
    }
    case kExt1: {
      HAULWAY_ASSIGN(const uint8_t code, U8());
      MentionExtension(code);
      return Status();
    }
    case kExt2: {
      HAULWAY_ASSIGN(const auto code, Fixed<uint16_t>());
      MentionExtension(code);
      return Status();
    }
    case kExt4: {
      HAULWAY_ASSIGN(const auto code, Fixed<uint32_t>());
      MentionExtension(code);
      return Status();
    }
    default:
      break;
  }
  const Thing name = Pop();
  const Thing module = Pop();
  if (ended_) return Status();
  for (const Thing thing : {module, name}) {
    if (thing.is(Kind::kText)) continue;
    if (thing.is_made()) {
      Fault(Code::kUnsafe, "STACK_GLOBAL of a name that is computed");
      Push(Kind::kOther);
    } else {
      Broken("STACK_GLOBAL needs texts");
    }
    return Status();
  }
  HAULWAY_ASSIGN(const auto module_text, TextAt(module.at()));
  HAULWAY_ASSIGN(const auto name_text, TextAt(name.at()));
  if (ended_) return Status();
  if (!module_text.has_value() || !name_text.has_value()) {
    Fault(Code::kUnsafe,
          "STACK_GLOBAL of a name that readers read differently");
    Push(Kind::kOther);
    return Status();
  }
  Mention(*module_text, *name_text);
  return Status();
}

Result<std::optional<std::string>> Tracer::TextAt(uint64_t at) {
  // Use a second tracer, so that the position of this one does not change.
  Tracer reader(source_, at, window_.end(), options_);
  HAULWAY_ASSIGN(const uint8_t opcode, reader.U8());
  uint64_t length = 0;
  switch (opcode) {
    case kString:
    case kUnicode: {
      HAULWAY_ASSIGN(const Line line, reader.ReadLine());
      if (!line.whole) return std::optional<std::string>(line.text);
      TreeArena arena;
      const auto text = opcode == kString
                            ? UnquoteString(line.text, arena)
                            : DecodeRawUnicodeEscape(line.text, arena);
      if (!text.has_value()) return std::optional<std::string>();
      if (opcode == kString && !IsAscii(*text)) {
        return std::optional<std::string>();
      }
      return std::optional<std::string>(std::string(*text));
    }
    case kShortBinString:
    case kShortBinUnicode: {
      HAULWAY_ASSIGN(length, reader.U8());
      break;
    }
    case kBinString:
    case kBinUnicode: {
      HAULWAY_ASSIGN(length, reader.Fixed<uint32_t>());
      break;
    }
    default: {
      HAULWAY_ASSIGN(length, reader.Fixed<uint64_t>());
      break;
    }
  }
  HAULWAY_ASSIGN(const auto bytes,
                 reader.Bytes(std::min(length, kLongestName)));
  std::string text(TextOf(bytes));
  // Readers choose the encoding that turns Python 2's str into Python 3's.
  if ((opcode == kShortBinString || opcode == kBinString) && !IsAscii(text)) {
    return std::optional<std::string>();
  }
  return std::optional<std::string>(std::move(text));
}

}  // namespace haulway::scan
