// Design: the text is searched for words followed by a separator, at any place,
// including comments and quotes. So every key that some reader sees is found,
// and more. The search is repeated on the text with the escapes of
// double-quoted strings decoded.
//
// Alternative not taken: parse YAML fully. That would have to be done as each
// reader does it.

#include "scan/yaml_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <string>
#include <system_error>
#include <utility>

#include "base/text.h"
#include "haulway/options.h"
#include "safetensors/refusal_values.h"
#include "scan/file_names.h"
#include "scan/template_proof.h"

namespace haulway::scan {

namespace {

constexpr std::string_view kYamlSpace = " \t\r\n\f\v";
constexpr std::string_view kQuotes = "'\"";

// Decodes percent escapes: "%70ython" is "python".
std::string WithoutPercents(std::string_view text) {
  std::string plain;
  const auto digit = [](char c) {
    constexpr std::string_view kDigits = "0123456789abcdef";
    return kDigits.find(Lower(std::string_view(&c, 1)));
  };
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%' && i + 2 < text.size() &&
        digit(text[i + 1]) != kYamlSpace.npos &&
        digit(text[i + 2]) != kYamlSpace.npos) {
      plain += static_cast<char>(digit(text[i + 1]) << 4 | digit(text[i + 2]));
      i += 2;
    } else {
      plain += text[i];
    }
  }
  return plain;
}

// Returns whether `tag` is one of YAML's own types, which are data.
bool IsPlainTag(std::string_view tag) {
  constexpr std::string_view kTypes[] = {
      "!!str", "!!int", "!!float", "!!bool",      "!!null",  "!!seq",
      "!!map", "!!set", "!!omap",  "!!timestamp", "!!pairs", "!!binary"};
  return std::ranges::find(kTypes, tag) != std::end(kTypes);
}

// Decodes numeric escapes of YAML's double-quoted strings, and joins lines that
// end with a backslash: "_tar\x67et_" becomes "_target_".
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
      if (whole) {
        safetensors::AppendUtf8(code, &plain);
        i += digits;
      }
    } else if (kind == '\n' || kind == '\r') {
      i = std::min(text.find_first_not_of(kYamlSpace, i), text.size()) - 1;
    } else {
      plain += {'\\', kind};
    }
  }
  return plain;
}

// Replaces YAML 1.1's line breaks beyond ASCII by ASCII ones. Offsets do not
// change.
std::string WithPlainBreaks(std::string_view text) {
  std::string plain(text);
  for (const std::string_view line_break :
       {"\xC2\x85", "\xE2\x80\xA8", "\xE2\x80\xA9"}) {
    for (size_t at = plain.find(line_break); at != plain.npos;
         at = plain.find(line_break, at)) {
      plain.replace(at, line_break.size(),
                    std::string_view("\n  ").substr(0, line_break.size()));
    }
  }
  return plain;
}

bool IsKeyByte(char c) {
  constexpr std::string_view kSigns = "_-@/.";
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
         (c >= '0' && c <= '9') || kSigns.find(c) != kSigns.npos ||
         static_cast<unsigned char>(c) >= 0x80;
}

class PairWalk {
 public:
  PairWalk(std::string_view text, const ConfigPlace& place)
      : text_(text), place_(place) {}

  std::optional<Doubt> Walk() {
    for (size_t at = 0; at < text_.size();) {
      if (auto doubt = DoubtOfTangle(at)) return doubt;
      if (text_[at] == '&') {
        if (auto doubt = DoubtOfAnchor(at)) return doubt;
      }
      if (!IsKeyByte(text_[at])) {
        ++at;
        continue;
      }
      const size_t begin = at;
      at = EndOfKey(begin);
      const std::string_view key = text_.substr(begin, at - begin);
      const size_t value = ValueOf(at);
      if (value == kNone) continue;
      if (auto why = DoubtOfKey(key)) return Doubt{*std::move(why), begin};
      const KeyFacts facts = FactsOfKey(key, {}, place_);
      if (!Matters(facts)) continue;
      if (auto doubt = DoubtOfItems(facts, value)) return doubt;
    }
    return DoubtOfTangle(text_.size());
  }

 private:
  static constexpr size_t kNone = std::string_view::npos;
  // Limit on the bytes looked at beside those of the walk itself: a key, an
  // anchor or a comment could be looked at for each key before it.
  static constexpr size_t kMostLookedAt = 32 * kMiB;

  std::optional<Doubt> DoubtOfTangle(size_t at) const {
    if (looked_at_ <= kMostLookedAt) return std::nullopt;
    return Doubt{"a configuration that is too tangled to be followed", at};
  }
  static bool Matters(const KeyFacts& key) {
    return key.row != nullptr || key.naming != KeyFacts::Naming::kNone;
  }
  char At(size_t at) const { return at < text_.size() ? text_[at] : '\n'; }
  bool IsSpace(size_t at) const {
    return kYamlSpace.find(At(at)) != kYamlSpace.npos;
  }

  size_t EndOfKey(size_t at) const {
    while (at < text_.size() && IsKeyByte(text_[at])) ++at;
    return at;
  }

  // Skips white space and comments.
  size_t Skip(size_t at) const {
    const size_t begin = at;
    for (;;) {
      at = std::min(text_.find_first_not_of(kYamlSpace, at), text_.size());
      if (At(at) != '#' || (at > 0 && !IsSpace(at - 1))) break;
      if (at >= skipped_from_ && at < skipped_to_) {
        at = skipped_to_;  // Within comments that were skipped before.
        break;
      }
      at = std::min(text_.find_first_of("\r\n", at), text_.size());
    }
    if (at == skipped_to_) return at;
    looked_at_ += at - begin;
    skipped_from_ = begin;
    skipped_to_ = at;
    return at;
  }

  // Returns where the value of the key that ends at `at` begins; kNone if it is
  // not a key.
  size_t ValueOf(size_t at) const {
    const bool is_quoted = kQuotes.find(At(at)) != kQuotes.npos;
    const size_t sign = Skip(is_quoted ? at + 1 : at);
    if (sign >= text_.size()) return kNone;
    if (text_[sign] == '=') return sign + 1;
    if (text_[sign] != ':') return kNone;
    constexpr std::string_view kBegins = "'\"[{,";
    return is_quoted || IsSpace(sign + 1) ||
                   kBegins.find(At(sign + 1)) != kBegins.npos
               ? sign + 1
               : kNone;
  }

  // Returns a doubt about an anchor on a key, through which an alias can repeat
  // the key elsewhere.
  std::optional<Doubt> DoubtOfAnchor(size_t at) const {
    const size_t space =
        std::min(text_.find_first_of(kYamlSpace, at), text_.size());
    const size_t begin = Skip(space);
    looked_at_ += space - at;
    const size_t word =
        kQuotes.find(At(begin)) != kQuotes.npos ? begin + 1 : begin;
    const std::string_view key =
        text_.substr(std::min(word, text_.size()), EndOfKey(word) - word);
    looked_at_ += key.size();
    if (!DoubtOfKey(key) && !Matters(FactsOfKey(key, {}, place_))) {
      return std::nullopt;
    }
    return Doubt{
        fmt::format("an anchor of YAML at {}, by which it may be a key "
                    "elsewhere",
                    Quote(key)),
        at};
  }

  std::optional<Doubt> DoubtOfItems(const KeyFacts& key, size_t at) const {
    bool is_list = false;
    for (size_t index = 0;; ++index) {
      at = Skip(at);
      // "- " in block lists, "[" and "," in flow lists.
      while (At(at) == '[' || (is_list && At(at) == ',') ||
             (At(at) == '-' && IsSpace(at + 1))) {
        is_list = true;
        at = Skip(at + 1);
      }
      if (is_list && (At(at) == ']' || at >= text_.size())) return std::nullopt;
      if (At(at) == '*') {
        return Doubt{
            "an alias of YAML under a key by which programs import "
            "what it names",
            at};
      }
      size_t end = 0;
      const std::optional<std::string_view> item = ItemAt(at, &end);
      looked_at_ += end - at;
      if (auto doubt = DoubtOfTangle(at)) return doubt;
      if (!item.has_value()) return std::nullopt;
      const ConfigValue value{
          .text = *item,
          .index = is_list ? std::optional(index) : std::nullopt};
      if (auto why = DoubtOfValue(key, value, place_)) {
        return Doubt{*std::move(why), at};
      }
      const size_t next = Skip(end);
      if (!is_list || (At(next) != ',' && At(next) != '-')) return std::nullopt;
      at = next;
    }
  }

  // Returns the scalar at `at`, after its anchor, its tag and the header of a
  // block scalar; nullopt if it is a key.
  std::optional<std::string_view> ItemAt(size_t at, size_t* end) const {
    while (At(at) == '&' || At(at) == '!') {
      at = Skip(std::min(text_.find_first_of(kYamlSpace, at), text_.size()));
    }
    const bool is_block = At(at) == '|' || At(at) == '>';
    if (is_block) {
      const size_t line =
          std::min(text_.find_first_of("\r\n", at), text_.size());
      looked_at_ += line - at;
      at = Skip(line);
    }
    const char quote = At(at);
    if (kQuotes.find(quote) != kQuotes.npos && at < text_.size()) {
      size_t count = 1;
      while (count < 3 && At(at + count) == quote) ++count;
      if (count == 2) {
        *end = at + 2;
        return "";
      }
      at = count == 3 ? Skip(at + 3) : at + 1;
      *end = std::min(text_.find(quote, at), text_.size());
      const std::string_view item = text_.substr(at, *end - at);
      *end = std::min(*end + count, text_.size());
      return item;
    }
    *end = std::min(text_.find_first_of("\r\n,]}", at), text_.size());
    std::string_view item = text_.substr(at, *end - at);
    item = item.substr(0, std::min(item.find(" #"), item.find("\t#")));
    item = item.substr(0, item.find_last_not_of(kYamlSpace) + 1);
    if (!is_block && (item.ends_with(':') || item.find(": ") != item.npos ||
                      item.find(" = ") != item.npos)) {
      return std::nullopt;
    }
    return item;
  }

  std::string_view text_;
  const ConfigPlace& place_;
  mutable size_t looked_at_ = 0;
  // The last white space and comments that were skipped.
  mutable size_t skipped_from_ = 0, skipped_to_ = 0;
};

// Returns where a text calls something outside of comments, if it is a model of
// YOLO: parse_model() passes the activation, the parts of the backbone and the
// head, and their arguments to eval().
std::optional<size_t> CallInYolo(std::string_view text) {
  if (text.find("backbone") == text.npos ||
      (text.find("head") == text.npos &&
       text.find("activation") == text.npos)) {
    return std::nullopt;
  }
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find_first_of("\r\n", at), text.size());
    std::string_view line = text.substr(at, end - at);
    size_t comment = line.find('#');
    while (comment != line.npos && comment > 0 &&
           kYamlSpace.find(line[comment - 1]) == kYamlSpace.npos) {
      comment = line.find('#', comment + 1);
    }
    if (line.find_first_of(kQuotes) > comment) line = line.substr(0, comment);
    if (const size_t call = line.find('('); call != line.npos) {
      return at + call;
    }
    at = end + 1;
  }
  return std::nullopt;
}

// Returns where a factory of logging ("()") is named as a key.
std::optional<size_t> FactoryKey(std::string_view text) {
  constexpr std::string_view kKey = "()", kBefore = " \t\r\n{,'\"?";
  for (size_t at = text.find(kKey); at != text.npos;
       at = text.find(kKey, at + 1)) {
    if (at > 0 && kBefore.find(text[at - 1]) == kBefore.npos) continue;
    const size_t next = text.find_first_not_of(" \t\r\n'\"", at + kKey.size());
    if (next != text.npos && (text[next] == ':' || text[next] == '=')) {
      return at;
    }
  }
  return std::nullopt;
}

}  // namespace

std::optional<Doubt> DoubtOfTags(std::string_view text, bool is_yaml) {
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
  return std::nullopt;
}

std::optional<Doubt> DoubtOfPairs(std::string_view text,
                                  const ConfigPlace& place) {
  // Keys that count anywhere in the text.
  constexpr std::string_view kAnywhere[] = {"_target_", "class_path"};
  const std::string breaks = WithPlainBreaks(text);
  const size_t escape = text.find('\\');
  const std::string plain =
      escape == text.npos ? std::string() : WithoutEscapes(breaks);
  const std::string suffix = SuffixOf(place.file);
  const bool is_yaml = suffix == ".yaml" || suffix == ".yml";
  for (const std::string_view key : kAnywhere) {
    if (!is_yaml) break;
    if (const size_t at = text.find(key); at != text.npos) {
      return Doubt{*DoubtOfKey(key), at};
    }
    // Offsets in the decoded text differ from those in the file.
    if (plain.find(key) != plain.npos) return Doubt{*DoubtOfKey(key), escape};
  }
  constexpr std::string_view kFactory = "()", kObject = "ext://";
  for (const std::string_view one : {text, std::string_view(plain)}) {
    const bool is_plain = one.data() != text.data();
    if (const auto at = FactoryKey(one)) {
      return Doubt{*DoubtOfKey(kFactory), is_plain ? escape : *at};
    }
    if (const size_t at = one.find(kObject); at != one.npos) {
      return Doubt{*DoubtOfObject(kObject), is_plain ? escape : at};
    }
  }
  if (auto doubt = PairWalk(breaks, place).Walk()) return doubt;
  if (auto doubt = PairWalk(plain, place).Walk()) {
    return Doubt{std::move(doubt->why), escape};
  }
  if (auto doubt = DoubtOfTemplates(text)) return doubt;
  return DoubtOfYolo(text);
}

std::optional<Doubt> DoubtOfYolo(std::string_view text) {
  auto call = CallInYolo(text);
  const size_t escape = text.find('\\');
  if (!call.has_value() && escape != text.npos &&
      CallInYolo(WithoutEscapes(WithPlainBreaks(text))).has_value()) {
    call = escape;
  }
  if (!call.has_value()) return std::nullopt;
  return Doubt{"a call in a model of YOLO, which evaluates it", *call};
}

std::optional<Doubt> DoubtOfTemplates(std::string_view text) {
  const size_t escape = text.find('\\');
  const std::string plain =
      escape == text.npos ? std::string() : WithoutEscapes(text);
  for (const std::string_view one : {text, std::string_view(plain)}) {
    if (Lower(one).find("template") == one.npos ||
        (one.find("{{") == one.npos && one.find("{%") == one.npos)) {
      continue;
    }
    if (auto doubt = DoubtOfTemplate(one)) {
      if (one.data() != text.data()) doubt->byte = escape;
      return doubt;
    }
  }
  return std::nullopt;
}

}  // namespace haulway::scan
