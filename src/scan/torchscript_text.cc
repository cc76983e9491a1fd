#include "scan/torchscript_text.h"

#include <algorithm>
#include <cstddef>

#include "base/ascii.h"

namespace haulway::scan {

namespace {

size_t WordEnd(std::string_view text) {
  return static_cast<size_t>(std::ranges::find_if_not(text, IsWord) -
                             text.begin());
}

// Returns whether a module that defines this name runs its own code while it is
// imported: Python calls it for a base class, a subscript of a class or a
// missing name, or ScriptReader::Value() allows a call through it.
bool RunsAtImport(std::string_view name) {
  constexpr std::string_view kNames[] = {
      "__builtins__",     "__class_getitem__",
      "__dir__",          "__getattr__",
      "__getattribute__", "__init_subclass__",
      "__mro_entries__",  "__prepare__",
      "__set_name__",     "torch"};
  return std::ranges::find(kNames, name) != std::end(kNames);
}

// A ScriptReader parses lines that Python evaluates when it imports the text.
// Each method takes what it names, and returns false if that is not there.
class ScriptReader {
 public:
  explicit ScriptReader(std::string_view text) : rest_(text) {}

  // "forward(self: __torch__.M,\n    x: Tuple[int, int]=(1, 1)) -> Tensor:"
  bool Header() {
    if (!NewName() || !Take("(")) return false;
    while (!Take(")")) {
      if (Word().empty() || (Take(":") && !Value(0)) ||
          (Take("=") && !Value(0)) || (!Take(",") && !rest_.starts_with(')'))) {
        return false;
      }
    }
    return (!Take("->") || Value(0)) && Take(":") && AtLineEnd();
  }

  // "weight : Tensor", "stride : Final[Tuple[int, int]] = (1, 1)",
  // "__buffers__ = []"; and "__annotations__["0"] = Tensor" for an attribute
  // whose name is not an identifier.
  bool Member() {
    if (Take("__annotations__[") ? !Text() || !Take("]") : !NewName()) {
      return false;
    }
    const bool typed = Take(":");
    if (typed && !Value(0)) return false;
    return (Take("=") ? Value(0) : typed) && AtLineEnd();
  }

  // What was not taken.
  std::string_view rest() const { return rest_; }

 private:
  // Deepest nesting of a value.
  static constexpr int kDeepest = 64;

  // Takes `what`, and the blanks on both sides of it.
  bool Take(std::string_view what) {
    SkipBlanks();
    if (!rest_.starts_with(what)) return false;
    rest_.remove_prefix(what.size());
    SkipBlanks();
    return true;
  }
  void SkipBlanks() {
    rest_.remove_prefix(std::min(rest_.find_first_not_of(' '), rest_.size()));
  }
  // Within brackets, a line may end.
  void SkipLines() {
    rest_.remove_prefix(std::min(rest_.find_first_not_of(" \n"), rest_.size()));
  }
  bool AtLineEnd() const { return rest_.empty() || rest_.front() == '\n'; }

  std::string_view Word() {
    SkipLines();
    const std::string_view word = rest_.substr(0, WordEnd(rest_));
    rest_.remove_prefix(word.size());
    return word;
  }
  bool NewName() {
    const std::string_view word = Word();
    return !word.empty() && !RunsAtImport(word);
  }

  // A string of one line.
  bool Text() {
    if (!rest_.starts_with('"')) return false;
    for (size_t i = 1; i < rest_.size() && rest_[i] != '\n'; ++i) {
      if (rest_[i] == '\\') {
        ++i;
      } else if (rest_[i] == '"') {
        rest_.remove_prefix(i + 1);
        return true;
      }
    }
    return false;
  }

  // A type or a constant: a number, a text, a name with dots and a subscript,
  // or a list or tuple of these.
  bool Value(int depth) {
    if (depth > kDeepest) return false;
    if (Take("(")) return List(")", depth);
    if (Take("[")) return List("]", depth);
    if (rest_.starts_with('"')) return Text();
    // Only a module named "torch" could make this a call; see RunsAtImport().
    if (Take("torch.device(")) return Text() && Take(")");
    Take("-");
    const size_t end = rest_.find_first_of(" \n,:=()[]{}\"");
    const std::string_view name = rest_.substr(0, end);
    const bool is_number = !name.empty() && name[0] >= '0' && name[0] <= '9';
    if (name.empty() || !std::ranges::all_of(name, [&](char c) {
          return IsWord(c) || c == '.' || (is_number && (c == '-' || c == '+'));
        })) {
      return false;
    }
    rest_.remove_prefix(name.size());
    return !rest_.starts_with('[') || (Take("[") && List("]", depth));
  }

  bool List(std::string_view end, int depth) {
    while (!Take(end)) {
      if (!Value(depth + 1)) return false;
      if (!Take(",") && !rest_.starts_with(end)) return false;
    }
    return true;
  }

  std::string_view rest_;
};

// "class Linear(Module):"
bool IsClass(std::string_view line) {
  if (!line.starts_with("class ")) return false;
  line.remove_prefix(6);
  if (RunsAtImport(line.substr(0, WordEnd(line)))) return false;
  line.remove_prefix(WordEnd(line));
  for (const std::string_view base :
       {"(Module):", "(NamedTuple):", "(Enum):", "(Interface):",
        "(ModuleInterface):", "(Exception):", ":"}) {
    if (line == base) return true;
  }
  return false;
}

}  // namespace

std::optional<Doubt> DoubtOfTorchScript(std::string_view text) {
  // White space that Python treats as a line end or indents differently, and
  // "coding", which could declare another encoding in the first two lines.
  const size_t odd = std::min(
      text.find_first_of("\t\r\f\v"),
      text.substr(0, text.find('\n', text.find('\n') + 1)).find("coding"));
  if (odd != text.npos) {
    return Doubt{"code that is not as TorchScript is written", odd};
  }
  // Indentation of the current function; npos outside.
  size_t function = text.npos;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const size_t indent = text.substr(at, end - at).find_first_not_of(' ');
    const std::string_view line =
        indent == text.npos ? "" : text.substr(at + indent, end - at - indent);
    const Doubt doubt{"code that is not as TorchScript is written", at};
    at = end + 1;
    if (line.empty() || line.starts_with('#') ||
        (function != text.npos && indent > function)) {
      continue;
    }
    function = text.npos;
    if (line.starts_with("def ")) {
      // The header may end in another line.
      ScriptReader code(text.substr(end - line.size() + 4));
      if (indent > 2 || !code.Header()) return doubt;
      function = indent;
      at = text.size() - code.rest().size() + 1;
      continue;
    }
    const bool known =
        indent == 0 ? IsClass(line) || (line.starts_with("op_version_set ") &&
                                        ScriptReader(line).Member())
                    : indent == 2 && (line == "pass" || line == "..." ||
                                      ScriptReader(line).Member());
    if (!known) return doubt;
  }
  return std::nullopt;
}

}  // namespace haulway::scan
