// Design: a text that is JSON to its last byte is data, unless it names
// something that a JSON reader imports or evaluates (config_names.h). Any other
// text is searched for YAML tags, because YAML readers accept every text, and,
// if its name is that of a configuration, for the same names. What remains
// could still be a shell program, because a shell accepts every text. The file
// name tells whether someone would run it. Without a name, lines that read like
// commands are reported.

#include "scan/text_proof.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/text.h"
#include "scan/config_names.h"
#include "scan/file_names.h"
#include "scan/json_walk.h"
#include "scan/template_proof.h"
#include "scan/yaml_text.h"

namespace haulway::scan {

namespace {

constexpr std::string_view kSpace = " \t\r\n\f\v";

bool IsIdentifier(std::string_view word) {
  return !word.empty() && (word[0] < '0' || word[0] > '9') &&
         std::ranges::all_of(word, [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                  (c >= '0' && c <= '9') || c == '_' || c == '.';
         });
}

// Returns whether a shell or Python would take this line of a program for a
// command, an assignment, a call or an import. Prose does not look like one.
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
  // A statement of Python with a call: "with open('x') as f:".
  constexpr std::string_view kStatements[] = {
      "assert", "async",  "await", "class",  "def",  "del",
      "elif",   "for",    "if",    "lambda", "not",  "print",
      "raise",  "return", "while", "with",   "yield"};
  const size_t call = line.find('(');
  const bool ends_so = line.ends_with(':') || line.ends_with(')');
  if (std::ranges::find(kStatements, first) != std::end(kStatements) &&
      ends_so && call != line.npos && call > 0 && line[call - 1] != ' ' &&
      line.substr(call, 3) != "(s)") {
    return true;
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
    // In prose, a dash has a space after it.
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

// Returns the name of the attribute whose value is given after the sign at
// `end`.
std::string_view NameBefore(std::string_view text, size_t end) {
  constexpr size_t kLongest = 256;
  text = text.substr(0, end);
  text = text.substr(0, text.find_last_not_of(kSpace) + 1);
  text.remove_prefix(text.size() - std::min(text.size(), kLongest));
  const size_t before = text.find_last_of(" \t\r\n\f\v<>'\"=");
  return text.substr(before == text.npos ? 0 : before + 1);
}

// Browsers run scripts in XML if its elements are HTML or SVG, or if a style
// sheet turns them into these.
std::optional<Doubt> DoubtOfXml(std::string_view text) {
  for (const std::string_view mark :
       {"<?xml-stylesheet", "<!ATTLIST", "<!ENTITY", "<java"}) {
    if (const size_t at = text.find(mark); at != text.npos) {
      return Doubt{fmt::format("{} in XML, by which it is other XML to readers",
                               Quote(mark)),
                   at};
    }
  }
  for (size_t at = 0; at < text.size();) {
    const size_t begin = std::min(text.find('=', at), text.size());
    const size_t quote =
        std::min(text.find_first_not_of(kSpace, begin + 1), text.size());
    at = begin + 1;
    if (quote == text.size() || (text[quote] != '\'' && text[quote] != '"')) {
      continue;
    }
    at = std::min(text.find(text[quote], quote + 1), text.size());
    const std::string_view value = text.substr(quote + 1, at - quote - 1);
    const std::string_view name = NameBefore(text, begin);
    if (name == "class" && value.find_first_of(".&") != value.npos) {
      return Doubt{"a class in XML, of which readers make an object", begin};
    }
    if (!name.starts_with("xmlns")) continue;
    for (const std::string_view part : {"&", "1999/xhtml", "2000/svg"}) {
      if (value.find(part) == value.npos) continue;
      return Doubt{"elements in XML in which browsers run scripts", begin};
    }
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

std::optional<Doubt> DoubtOfText(std::string_view text, std::string_view name,
                                 std::span<const std::string> allowed) {
  const NameKind kind = FactsOfName(name).kind;
  const std::string suffix = SuffixOf(name);
  if (suffix == ".jinja" || suffix == ".jinja2") {
    return DoubtOfTemplate(text);
  }
  const ConfigPlace place{.file = name, .allowed = allowed};
  const bool is_yaml = suffix == ".yaml" || suffix == ".yml";
  JsonFacts json = WalkJson(text, place);
  if (json.is_json && !json.doubt.has_value() && is_yaml) {
    return DoubtOfYolo(text);
  }
  if (json.is_json && (json.doubt.has_value() || kind != NameKind::kOther)) {
    return std::move(json.doubt);
  }
  if (suffix == ".json" || suffix == ".jsonl" || suffix == ".ndjson") {
    return Doubt{"it is called JSON and is none", 0};
  }
  if (auto doubt = DoubtOfTags(text, is_yaml)) return doubt;
  const bool is_settings =
      suffix == ".ini" || suffix == ".cfg" || suffix == ".conf";
  if (is_yaml || is_settings || suffix == ".toml") {
    if (auto doubt = DoubtOfPairs(text, place)) return doubt;
  }
  if (suffix == ".xml") {
    if (auto doubt = DoubtOfXml(text)) return doubt;
  }
  // logging.config evaluates the classes and arguments in such a file.
  constexpr std::string_view kLogging = "[formatters]";
  if (const size_t at = text.find(kLogging); at != text.npos && is_settings) {
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
