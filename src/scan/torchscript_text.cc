#include "scan/torchscript_text.h"

#include <algorithm>
#include <cstddef>

#include "base/ascii.h"

namespace haulway::scan {

namespace {

// Tracks open brackets and quotes from line to line.
class Nesting {
 public:
  // Reads a line. Returns false if a bracket opens within or after parentheses
  // and could be a call, a string continues past the end of the line, or
  // brackets do not match.
  bool Take(std::string_view line) {
    for (size_t i = 0; i < line.size(); ++i) {
      const char c = line[i];
      if (c == '#') return true;
      if (c == '"' || c == '\'') {
        for (++i; i < line.size() && line[i] != c; ++i) {
          if (line[i] == '\\') ++i;
        }
        if (i >= line.size()) return false;
      } else if (c == '(') {
        // "Tuple[()]" is the type of an empty tuple.
        const bool is_empty =
            i > 0 && line[i - 1] == '[' && line.substr(i).starts_with("()");
        if ((round_ > 0 || closed_) && !is_empty) return false;
        ++round_;
      } else if (c == ')') {
        if (--round_ < 0) return false;
        closed_ = true;
      } else if (c == '[' || c == '{') {
        ++other_;
      } else if (c == ']' || c == '}') {
        if (--other_ < 0) return false;
      } else if (c == '@' || c == ';' || c == '\\' || c == '`') {
        return false;
      }
    }
    return true;
  }
  bool open() const { return round_ > 0 || other_ > 0; }

 private:
  int round_ = 0;
  int other_ = 0;
  bool closed_ = false;  // A parenthesis closed.
};

size_t WordEnd(std::string_view text) {
  return static_cast<size_t>(std::ranges::find_if_not(text, IsWord) -
                             text.begin());
}

// Returns whether Python calls what has this name while it imports a module:
// for a base class, a subscript of a class or a missing name.
bool IsCalledByImport(std::string_view name) {
  constexpr std::string_view kNames[] = {
      "__class_getitem__", "__dir__",         "__getattr__", "__getattribute__",
      "__init_subclass__", "__mro_entries__", "__prepare__", "__set_name__"};
  return std::ranges::find(kNames, name) != std::end(kNames);
}

// Returns whether `line`, which begins with "def ", defines such a function.
bool IsCalledFunction(std::string_view line) {
  line.remove_prefix(4);
  line = line.substr(std::min(line.find_first_not_of(' '), line.size()));
  return IsCalledByImport(line.substr(0, WordEnd(line)));
}

// "class Linear(Module):"
bool IsClass(std::string_view line) {
  if (!line.starts_with("class ")) return false;
  line.remove_prefix(6);
  line.remove_prefix(WordEnd(line));
  for (const std::string_view base :
       {"(Module):", "(NamedTuple):", "(Enum):", "(Interface):",
        "(ModuleInterface):", "(Exception):", ":"}) {
    if (line == base) return true;
  }
  return false;
}

// Returns whether `line` declares a member, like "weight : Tensor" or
// "__buffers__ = []", and calls nothing.
bool IsMember(std::string_view line) {
  if (line == "pass" || line == "...") return true;
  std::string_view rest = line.substr(WordEnd(line));
  const std::string_view word = line.substr(0, line.size() - rest.size());
  if (word.empty() || IsCalledByImport(word) || line.find('(') != line.npos) {
    return false;
  }
  // "__annotations__["0"] = Tensor" declares an attribute whose name is not an
  // identifier.
  if (word == "__annotations__" && rest.starts_with('[')) {
    const size_t end = rest.find(']');
    if (end == rest.npos) return false;
    rest.remove_prefix(end + 1);
  }
  rest = rest.substr(std::min(rest.find_first_not_of(' '), rest.size()));
  return rest.starts_with(':') ||
         (rest.starts_with('=') && !rest.starts_with("=="));
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
  Nesting nesting;
  // True within a function header of several lines.
  bool in_header = false;
  // Indentation of the current function; npos outside.
  size_t function = text.npos;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    std::string_view line = text.substr(at, end - at);
    const Doubt doubt{"code that is not as TorchScript is written", at};
    at = end + 1;
    const size_t indent = line.find_first_not_of(' ');
    if (indent == line.npos) continue;
    line.remove_prefix(indent);
    if (in_header) {
      if (!nesting.Take(line)) return doubt;
      in_header = nesting.open();
      // Python would run code after the colon as the function's body.
      if (!in_header && !line.ends_with(':')) return doubt;
      continue;
    }
    if (function != text.npos && indent > function) continue;
    function = text.npos;
    if (line.starts_with('#')) continue;
    if (line.starts_with("def ")) {
      if (indent > 2 || IsCalledFunction(line)) return doubt;
      nesting = Nesting();
      if (!nesting.Take(line)) return doubt;
      in_header = nesting.open();
      if (!in_header && !line.ends_with(':')) return doubt;
      function = indent;
      continue;
    }
    const bool known =
        indent == 0 ? IsClass(line) || (line.starts_with("op_version_set ") &&
                                        IsMember(line))
                    : indent == 2 && IsMember(line);
    nesting = Nesting();
    if (!known || (indent > 0 && (!nesting.Take(line) || nesting.open()))) {
      return doubt;
    }
  }
  return std::nullopt;
}

}  // namespace haulway::scan
