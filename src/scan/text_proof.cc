// How: a text that is JSON to its last byte is data, unless it has a key by
// which some reader of JSON imports or evaluates the value. Any other text is
// looked through for tags of YAML, since readers of YAML take every text. What
// is left could still be a program of a shell, for which every text is one;
// whether anybody gives it to a shell is said by its name. Where there is no
// name, lines that read like commands are what is looked for.
//
// Parsing YAML to its end was left out: a tag is the only thing in it by which
// a loader calls anything, and tags can be seen without parsing.

#include "scan/text_proof.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <utility>
#include <vector>

#include "base/text.h"
#include "scan/file_names.h"
#include "scan/template_proof.h"

namespace haulway::scan {

namespace {

constexpr std::string_view kSpace = " \t\r\n\f\v";

struct KeyRow {
  std::string_view key;
  std::string_view why;
};
constexpr std::string_view kHydra = "_target_";
constexpr std::string_view kJsonArgparse = "class_path";
// Keys whose values readers import, call or evaluate.
constexpr KeyRow kKeys[] = {
    {"class_name", "Keras imports the class that it names"},
    {"registered_name", "Keras imports the class that it names"},
    {"auto_map", "transformers imports the code that it names"},
    {"custom_pipelines", "transformers imports the code that it names"},
    {kHydra, "Hydra calls what it names"},
    {kJsonArgparse, "Lightning's command line calls the class that it names"},
    {"nbformat", "Jupyter runs the cells beside it"},
};
// jsonpickle's keys, "py/object" and others.
constexpr std::string_view kJsonPickle = "py/";

std::optional<std::string> DoubtOfKey(std::string_view key) {
  if (key.starts_with(kJsonPickle)) {
    return fmt::format("the key {}: jsonpickle imports what it names",
                       Quote(key));
  }
  const auto* row = std::ranges::find(kKeys, key, &KeyRow::key);
  if (row == std::end(kKeys)) return std::nullopt;
  return fmt::format("the key {}: {}", Quote(key), row->why);
}

// JSON as Python's json module reads it: with NaN and Infinity, and numbers of
// any length, which simdjson refuses and tokenizers' configurations have.
class JsonWalk {
 public:
  explicit JsonWalk(std::string_view text) : text_(text) {
    constexpr std::string_view kBom = "\xEF\xBB\xBF";
    if (text_.starts_with(kBom)) at_ = kBom.size();
  }

  // Whether the rest is values, one after another as JSON lines have them.
  bool Values() {
    SkipSpace();
    if (at_ == text_.size() || (Next() != '{' && Next() != '[')) return false;
    for (; at_ < text_.size(); SkipSpace()) {
      if (!Value()) return false;
    }
    return true;
  }
  // The doubt about the first key that has one.
  const std::optional<Doubt>& doubt() const { return doubt_; }

 private:
  enum class Want : uint8_t { kValue, kValueOrEnd, kKey, kKeyOrEnd, kAfter };

  char Next() const { return text_[at_]; }
  void SkipSpace() {
    at_ = std::min(text_.find_first_not_of(" \t\r\n", at_), text_.size());
  }

  bool Value() {
    std::vector<char> open;
    Want want = Want::kValue;
    do {
      SkipSpace();
      if (at_ == text_.size()) return false;
      const char c = Next();
      const bool may_end = want == Want::kAfter || want == Want::kValueOrEnd ||
                           want == Want::kKeyOrEnd;
      if (may_end && (c == '}' || c == ']')) {
        if (open.empty() || open.back() != (c == '}' ? '{' : '[')) return false;
        open.pop_back();
        ++at_;
        want = Want::kAfter;
        if (open.size() <= template_) template_ = kNowhere;
      } else if (want == Want::kAfter) {
        if (c != ',') return false;
        ++at_;
        want = open.back() == '{' ? Want::kKey : Want::kValue;
      } else if (want == Want::kKey || want == Want::kKeyOrEnd) {
        if (!Key(open.size())) return false;
        want = Want::kValue;
      } else if (c == '{' || c == '[') {
        open.push_back(c);
        ++at_;
        want = c == '{' ? Want::kKeyOrEnd : Want::kValueOrEnd;
      } else {
        const size_t begin = at_;
        if (!(c == '"' ? String() : Scalar())) return false;
        if (c == '"' && template_ != kNowhere && !doubt_.has_value()) {
          doubt_ = DoubtOfTemplate(
              Unescaped(text_.substr(begin + 1, at_ - begin - 2)));
          if (doubt_.has_value()) doubt_->byte = begin;
        }
        want = Want::kAfter;
        if (open.size() <= template_) template_ = kNowhere;
      }
    } while (!open.empty());
    return true;
  }

  bool Key(size_t depth) {
    const size_t begin = at_;
    if (!String()) return false;
    const std::string key = Unescaped(text_.substr(begin + 1, at_ - begin - 2));
    if (IsNameOfTemplate(key) && template_ == kNowhere) template_ = depth;
    if (!doubt_.has_value()) {
      if (auto why = DoubtOfKey(key)) doubt_ = Doubt{std::move(*why), begin};
    }
    SkipSpace();
    if (at_ == text_.size() || Next() != ':') return false;
    ++at_;
    return true;
  }

  bool String() {
    if (Next() != '"') return false;
    for (++at_; at_ < text_.size(); ++at_) {
      if (Next() == '"') {
        ++at_;
        return true;
      }
      if (static_cast<unsigned char>(Next()) < ' ') return false;
      if (Next() == '\\') ++at_;
    }
    return false;
  }

  bool Scalar() {
    const size_t end =
        std::min(text_.find_first_of(" \t\r\n,]}:", at_), text_.size());
    const std::string_view word = text_.substr(at_, end - at_);
    at_ = end;
    constexpr std::string_view kWords[] = {"true", "false",    "null",
                                           "NaN",  "Infinity", "-Infinity"};
    return std::ranges::find(kWords, word) != std::end(kWords) ||
           (!word.empty() &&
            word.find_first_not_of("+-.0123456789eE") == word.npos);
  }

  // With the escapes of ASCII undone; any other is a "?", which stands in no
  // key of the table and for nothing in a template.
  static std::string Unescaped(std::string_view text) {
    std::string plain;
    for (size_t i = 0; i < text.size(); ++i) {
      if (text[i] != '\\' || i + 1 == text.size()) {
        plain += text[i];
        continue;
      }
      ++i;
      unsigned code = 0;
      constexpr std::string_view kLetters = "bfnrt", kBytes = "\b\f\n\r\t";
      if (text[i] == 'u' && i + 4 < text.size() &&
          std::from_chars(text.data() + i + 1, text.data() + i + 5, code, 16)
                  .ptr == text.data() + i + 5) {
        plain += code < 0x80 ? static_cast<char>(code) : '?';
        i += 4;
      } else if (const size_t at = kLetters.find(text[i]); at != text.npos) {
        plain += kBytes[at];
      } else {
        plain += text[i];
      }
    }
    return plain;
  }

  static constexpr size_t kNowhere = SIZE_MAX;
  std::string_view text_;
  size_t at_ = 0;
  size_t template_ = kNowhere;  // How deep the value of a template stands.
  std::optional<Doubt> doubt_;
};

// "%70ython" as "python".
std::string WithoutPercents(std::string_view text) {
  std::string plain;
  const auto digit = [](char c) {
    constexpr std::string_view kDigits = "0123456789abcdef";
    return kDigits.find(Lower(std::string_view(&c, 1)));
  };
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%' && i + 2 < text.size() &&
        digit(text[i + 1]) != kSpace.npos &&
        digit(text[i + 2]) != kSpace.npos) {
      plain += static_cast<char>(digit(text[i + 1]) << 4 | digit(text[i + 2]));
      i += 2;
    } else {
      plain += text[i];
    }
  }
  return plain;
}

// Tags of YAML's own types, which stand for data.
bool IsPlainTag(std::string_view tag) {
  constexpr std::string_view kTypes[] = {
      "!!str", "!!int", "!!float", "!!bool",      "!!null",  "!!seq",
      "!!map", "!!set", "!!omap",  "!!timestamp", "!!pairs", "!!binary"};
  return std::ranges::find(kTypes, tag) != std::end(kTypes);
}

// A text in which escapes of YAML's double quotes are undone that stand for
// ASCII, and lines are joined that a backslash ends: "_tar\x67et_" and others
// are "_target_".
std::string WithoutEscapes(std::string_view text) {
  std::string plain;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\\' || i + 1 == text.size()) {
      plain += text[i];
      continue;
    }
    const char kind = text[++i];
    const size_t digits = kind == 'x' ? 2 : kind == 'u' ? 4 : 8;
    if (kind == 'x' || kind == 'u' || kind == 'U') {
      const std::string_view number = text.substr(i + 1, digits);
      unsigned code = 0;
      const auto read = std::from_chars(
          number.data(), number.data() + number.size(), code, 16);
      const bool whole = number.size() == digits && read.ec == std::errc() &&
                         read.ptr == number.data() + digits;
      plain += whole && code < 0x80 ? static_cast<char>(code) : '?';
      if (whole) i += digits;
    } else if (kind == '\n' || kind == '\r') {
      i = std::min(text.find_first_not_of(kSpace, i), text.size()) - 1;
    } else {
      plain += {'\\', kind};
    }
  }
  return plain;
}

// Tags by which loaders of YAML call what they name. A file that is called
// YAML may have none but YAML's own; in other texts an exclamation mark is one
// unless it is a tag of PyYAML for objects of Python.
std::optional<Doubt> DoubtOfYaml(std::string_view text, bool is_yaml) {
  for (size_t at = text.find("%TAG"); at != text.npos;
       at = text.find("%TAG", at + 1)) {
    if (at == 0 || text[at - 1] == '\n' || text[at - 1] == '\r') {
      return Doubt{"a directive of YAML that renames tags", at};
    }
  }
  for (size_t at = text.find('!'); at != text.npos;
       at = text.find('!', at + 1)) {
    constexpr std::string_view kBefore = " \t\r\n[{,-:?&";
    if (at > 0 && kBefore.find(text[at - 1]) == kBefore.npos &&
        static_cast<unsigned char>(text[at - 1]) < 0x80) {
      continue;
    }
    const bool is_verbatim = text.substr(at).starts_with("!<");
    const size_t end = std::min(
        text.find_first_of(is_verbatim ? " \t\r\n>" : " \t\r\n[]{},", at),
        text.size());
    const std::string_view tag = text.substr(at, end - at);
    const bool is_of_python =
        (tag.starts_with("!!") || tag.starts_with("!<")) &&
        WithoutPercents(tag).find("python") != tag.npos;
    if (is_of_python || (is_yaml && tag.size() > 1 && !IsPlainTag(tag))) {
      return Doubt{fmt::format("the YAML tag {}, by which loaders make objects",
                               Quote(tag)),
                   at};
    }
    at = end > at ? end - 1 : at;
  }
  if (!is_yaml) return std::nullopt;
  const size_t escape = text.find('\\');
  const std::string plain =
      escape == text.npos ? std::string() : WithoutEscapes(text);
  for (const std::string_view key : {kHydra, kJsonArgparse}) {
    if (const size_t at = text.find(key); at != text.npos) {
      return Doubt{*DoubtOfKey(key), at};
    }
    // Where the escapes were undone, no byte of the file is known.
    if (plain.find(key) != plain.npos) return Doubt{*DoubtOfKey(key), escape};
  }
  return std::nullopt;
}

bool IsIdentifier(std::string_view word) {
  return !word.empty() && (word[0] < '0' || word[0] > '9') &&
         std::ranges::all_of(word, [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                  (c >= '0' && c <= '9') || c == '_' || c == '.';
         });
}

// Whether a shell or Python would take this line of a program for a command,
// an assignment, a call or an import. Prose does not look like one.
bool ReadsLikeCode(std::string_view line) {
  const size_t begin = line.find_first_not_of(kSpace);
  if (begin == line.npos || line[begin] == '#') return false;
  line.remove_prefix(begin);
  line = line.substr(0, line.find_last_not_of(kSpace) + 1);
  const std::string_view first = line.substr(0, line.find_first_of(kSpace));
  if ((first == "import" || first == "from") && line.size() > first.size()) {
    const std::string_view rest = line.substr(first.size() + 1);
    const std::string_view module = rest.substr(0, rest.find_first_of(" ,;"));
    if (IsIdentifier(module) &&
        (module.size() == rest.size() || rest[module.size()] != ' ' ||
         rest.find(" import ") != rest.npos ||
         rest.find(" as ") != rest.npos)) {
      return true;
    }
  }
  // A call, or an assignment.
  const size_t word_end = line.find_first_of("(=");
  if (word_end != line.npos && IsIdentifier(line.substr(0, word_end)) &&
      (line[word_end] == '=' || line.find(')') != line.npos)) {
    return true;
  }
  const bool is_command =
      first.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_.-+/~") ==
      first.npos;
  if (first.starts_with('/') || first.starts_with("./") ||
      first.starts_with("~/") || first.starts_with('$') ||
      line.find("$(") != line.npos || line.find("${") != line.npos) {
    return true;
  }
  if (!is_command) return false;
  if (line.find_first_of(";|&<>`$") != line.npos) return true;
  for (const std::string_view mark : {" -", " /", " ~/", " ./", " ../"}) {
    const size_t at = line.find(mark);
    // A dash between spaces is one of prose.
    if (at != line.npos && at + mark.size() < line.size() &&
        line[at + mark.size()] != ' ') {
      return true;
    }
  }
  return false;
}

std::optional<Doubt> DoubtOfProgram(std::string_view text) {
  for (const std::string_view mark : {"{{", "{%"}) {
    if (text.find(mark) == text.npos) continue;
    if (auto doubt = DoubtOfTemplate(text)) return doubt;
    break;
  }
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view line = text.substr(at, end - at);
    if (ReadsLikeCode(line)) {
      return Doubt{fmt::format("a line that reads like code, {}, in a text "
                               "that has no name to say what it is",
                               Quote(line)),
                   at};
    }
    at = end + 1;
  }
  return std::nullopt;
}

}  // namespace

bool IsPlainText(std::string_view text) {
  return std::ranges::all_of(text,
                             [](char c) {
                               return static_cast<unsigned char>(c) >= ' ' ||
                                      kSpace.find(c) != kSpace.npos;
                             }) &&
         IsUtf8(text);
}

std::optional<Doubt> DoubtOfText(std::string_view text, std::string_view name) {
  const NameKind kind = FactsOfName(name).kind;
  const std::string suffix = SuffixOf(name);
  if (suffix == ".jinja" || suffix == ".jinja2") {
    return DoubtOfTemplate(text);
  }
  JsonWalk json(text);
  const bool is_json = json.Values();
  if (is_json && (json.doubt().has_value() || kind != NameKind::kOther)) {
    return json.doubt();
  }
  if (suffix == ".json" || suffix == ".jsonl" || suffix == ".ndjson") {
    return Doubt{"it is called JSON and is none", 0};
  }
  if (auto doubt = DoubtOfYaml(text, suffix == ".yaml" || suffix == ".yml")) {
    return doubt;
  }
  // logging.config evaluates what such a file says of classes and arguments.
  constexpr std::string_view kLogging = "[formatters]";
  if (const size_t at = text.find(kLogging);
      at != text.npos &&
      (suffix == ".ini" || suffix == ".cfg" || suffix == ".conf")) {
    return Doubt{"a configuration of logging, which Python evaluates", at};
  }
  if (kind == NameKind::kText && IsNameOfTemplate(name)) {
    return DoubtOfTemplate(text);
  }
  if (kind == NameKind::kText) return std::nullopt;
  if (kind == NameKind::kNone) return DoubtOfProgram(text);
  return Doubt{
      "a text, and nothing in its name says that no shell or other program "
      "runs it",
      0};
}

}  // namespace haulway::scan
