// Design: the JSON is read into rules before a tensor is looked at, and what
// can be wrong with it is found then: keys, operations, parameters, patterns;
// only expressions are computed later. A slip of the keyboard is answered with
// the name that was meant, since an unknown key that is passed over would leave
// tensors as they are. simdjson refuses NaN, numbers beyond 64 bits and nesting
// beyond a few levels; lists are no longer than their text.

#include "arithmetic/rule.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <simdjson.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <set>
#include <span>
#include <system_error>
#include <utility>

#include "base/ascii.h"
#include "base/text.h"
#include "haulway/nearest.h"

namespace haulway::arithmetic {

namespace dom = simdjson::dom;

namespace {

constexpr size_t kMostRuleDepth = 16;

constexpr std::array<std::string_view, 5> kKeys = {"source", "target", "ops",
                                                   "apply", "rename"};

Status WrongRule(std::string_view what) {
  return Status(Code::kInvalidArgument, what);
}

template <class Names>
Status Unknown(std::string_view kind, std::string_view name,
               const Names& names) {
  return WrongRule(
      fmt::format("there is no {} {}{}: expected one of {}", kind, Quote(name),
                  HintOf(name, names, [](auto one) { return one; }),
                  fmt::join(names, ", ")));
}

Result<std::string> TextOf(dom::element value, std::string_view key) {
  std::string_view text;
  if (value.get_string().get(text)) {
    return WrongRule(fmt::format("{} is no string", Quote(key)));
  }
  return std::string(text);
}

// Returns the elements of a list, or the value itself.
std::vector<dom::element> ListOf(dom::element value) {
  dom::array array;
  if (value.get_array().get(array)) return {value};
  return {array.begin(), array.end()};
}

// Returns a whole number or an expression, as text.
Result<std::string> NumberOf(dom::element value, std::string_view key) {
  int64_t number = 0;
  if (!value.get_int64().get(number)) return fmt::format("{}", number);
  std::string_view text;
  if (!value.get_string().get(text)) return std::string(text);
  return WrongRule(
      fmt::format("{} is neither a whole number below 2^63 nor a "
                  "string with an expression",
                  Quote(key)));
}

// Reads the parameter that an operation has beside the dimension.
Status ReadOther(dom::element value, RuleOperation* operation) {
  const std::string_view key = operation->row->other;
  if (key == "value") {
    if (value.get_double().get(operation->value)) {
      return WrongRule(fmt::format("{} is no number", Quote(key)));
    }
    return Status();
  }
  if (key == "dtype") {
    HAULWAY_ASSIGN(const std::string text, TextOf(value, key));
    const auto all = AllDTypes();
    const auto dtype = std::ranges::find_if(all, [&](const DTypeInfo& one) {
      return LowerCase(one.name) == LowerCase(text) ||
             (one.torch_name == text && !text.empty());
    });
    if (dtype == all.end()) {
      return WrongRule(fmt::format("there is no dtype {}", Quote(text)));
    }
    operation->dtype = dtype->dtype;
    return Status();
  }
  for (const dom::element one : ListOf(value)) {
    HAULWAY_ASSIGN(operation->numbers.emplace_back(), NumberOf(one, key));
  }
  if (key != "heads" || operation->numbers.size() == 1) return Status();
  return WrongRule(fmt::format("{} is not one number", Quote(key)));
}

// Reads {"stack": {"dim": 0}}.
Result<RuleOperation> OperationOf(dom::element value) {
  dom::object object;
  if (value.get_object().get(object) || object.size() != 1) {
    return WrongRule(
        "an operation is an object with one key, its name: expected "
        "{\"stack\": {\"dim\": 0}}");
  }
  const auto [name, parameters] = *object.begin();
  const std::span<const OperationRow> rows = Operations();
  const auto row = std::ranges::find(rows, name, &OperationRow::name);
  if (row == rows.end()) {
    std::vector<std::string_view> names;
    for (const OperationRow& one : rows) names.push_back(one.name);
    return Unknown("operation", name, names);
  }
  RuleOperation operation;
  operation.row = &*row;
  dom::object given;
  if (parameters.get_object().get(given)) {
    return WrongRule(
        fmt::format("the parameters of {} are no object", row->name));
  }
  std::vector<std::string_view> known;
  for (const std::string_view one : {row->dim, row->other}) {
    if (!one.empty()) known.push_back(one);
  }
  std::set<std::string_view> seen;
  for (const auto [key, of_key] : given) {
    if (std::ranges::find(known, key) == known.end()) {
      return Unknown(fmt::format("parameter of {}", row->name), key, known);
    }
    if (!seen.insert(key).second) {
      return WrongRule(fmt::format("{} is there twice", Quote(key)));
    }
    if (key == row->dim) {
      HAULWAY_ASSIGN(operation.dim, NumberOf(of_key, key));
    } else {
      HAULWAY_TRY(ReadOther(of_key, &operation));
    }
  }
  if (!row->other.empty() && !seen.contains(row->other)) {
    return WrongRule(fmt::format("{} needs {}", row->name, Quote(row->other)));
  }
  return operation;
}

Result<NamePattern> PatternOf(std::string_view text) {
  const size_t star = text.find('*');
  if (text.empty() || star != text.rfind('*')) {
    return WrongRule(
        fmt::format("{} is no name with at most one '*'", Quote(text)));
  }
  if (star == text.npos) return NamePattern{std::string(text), ""};
  NamePattern made{std::string(text.substr(0, star)),
                   std::string(text.substr(star + 1))};
  const bool is_between_dots =
      (made.before.empty() || made.before.ends_with('.')) &&
      (made.after.empty() || made.after.starts_with('.'));
  if (is_between_dots) return made;
  return WrongRule(
      fmt::format("the '*' of {} is not between dots", Quote(text)));
}

Result<NamePatterns> PatternsOf(dom::element value, std::string_view key) {
  NamePatterns made;
  std::set<std::string> seen;
  for (const dom::element one : ListOf(value)) {
    HAULWAY_ASSIGN(const std::string text, TextOf(one, key));
    const bool is_numbered = text.find('*') != text.npos;
    HAULWAY_ASSIGN(made.patterns.emplace_back(), PatternOf(text));
    if (made.patterns.size() > 1 && is_numbered != made.is_numbered) {
      return WrongRule(
          fmt::format("in {}, some names have a '*' and some have "
                      "none",
                      Quote(key)));
    }
    made.is_numbered = is_numbered;
    if (!seen.insert(text).second) {
      return WrongRule(fmt::format("{} has {} twice", Quote(key), Quote(text)));
    }
  }
  return made;
}

Result<Renaming> RenamingOf(dom::element value) {
  const std::vector<dom::element> pair = ListOf(value);
  if (pair.size() != 2) {
    return WrongRule("'rename' is not a regular expression and a replacement");
  }
  HAULWAY_ASSIGN(const std::string pattern, TextOf(pair[0], "rename"));
  HAULWAY_ASSIGN(std::string replacement, TextOf(pair[1], "rename"));
  HAULWAY_ASSIGN(Regex made, Regex::Make(pattern));
  HAULWAY_TRY(made.CheckReplacement(replacement));
  return Renaming{std::move(made), std::move(replacement)};
}

Status ReadField(std::string_view key, dom::element value, size_t functions,
                 Rule* rule) {
  if (key == "source") {
    HAULWAY_ASSIGN(rule->sources, PatternsOf(value, key));
    if (rule->sources.patterns.empty()) return WrongRule("'source' is empty");
    return Status();
  }
  if (key == "target") {
    HAULWAY_ASSIGN(rule->targets, PatternsOf(value, key));
    return Status();
  }
  if (key == "rename") {
    HAULWAY_ASSIGN(Renaming made, RenamingOf(value));
    rule->renaming = std::move(made);
    return Status();
  }
  if (key == "apply") {
    uint64_t number = 0;
    if (value.get_uint64().get(number) || number >= functions) {
      return WrongRule(
          "'apply' is a function, which only a caller of Python can "
          "give: expected 'ops'");
    }
    rule->function = number;
    return Status();
  }
  for (const dom::element one : ListOf(value)) {
    HAULWAY_ASSIGN(rule->operations.emplace_back(), OperationOf(one));
  }
  return Status();
}

Status ReadRule(dom::element value, size_t functions, Rule* rule) {
  dom::object object;
  if (value.get_object().get(object)) return WrongRule("it is no object");
  std::set<std::string_view> seen;
  for (const auto [key, of_key] : object) {
    if (std::ranges::find(kKeys, key) == kKeys.end()) {
      return Unknown("key", key, kKeys);
    }
    if (!seen.insert(key).second) {
      return WrongRule(fmt::format("{} is there twice", Quote(key)));
    }
    Status status = ReadField(key, of_key, functions, rule);
    if (!status.ok()) return status;
  }
  if (seen == std::set<std::string_view>{"rename"}) return Status();
  if (seen.contains("rename") || !seen.contains("source") ||
      !seen.contains("target")) {
    return WrongRule("a rule has 'source' and 'target', or 'rename' alone");
  }
  return Status();
}

// Returns what a rule is called in messages.
std::string NameOf(size_t number, dom::element value) {
  std::string name = fmt::format("rule {}", number);
  for (const std::string_view key : {kKeys[0], kKeys[4]}) {
    dom::element first;
    std::string_view text;
    if (value[key].get(first)) continue;
    const std::vector<dom::element> list = ListOf(first);
    if (!list.empty() && !list.front().get_string().get(text)) {
      return fmt::format("{} ({})", name, Quote(text));
    }
  }
  return name;
}

}  // namespace

std::optional<NamePattern::Match> NamePattern::Find(std::string_view name,
                                                    bool is_numbered) const {
  Match match;
  if (!name.ends_with(after)) return std::nullopt;
  name.remove_suffix(after.size());
  if (is_numbered) {
    size_t digits = 0;
    while (digits < name.size() && name[name.size() - digits - 1] >= '0' &&
           name[name.size() - digits - 1] <= '9') {
      ++digits;
    }
    const std::string_view number = name.substr(name.size() - digits);
    if (digits > 1 && number.starts_with('0')) return std::nullopt;
    const auto [end, error] =
        std::from_chars(number.data(), number.data() + digits, match.number);
    if (error != std::errc()) return std::nullopt;
    name.remove_suffix(digits);
  }
  if (!name.ends_with(before)) return std::nullopt;
  match.group = name.substr(0, name.size() - before.size());
  if (match.group.empty() || match.group.ends_with('.')) return match;
  return std::nullopt;
}

std::string NamePattern::Name(std::string_view group,
                              std::optional<uint64_t> number) const {
  return number.has_value()
             ? fmt::format("{}{}{}{}", group, before, *number, after)
             : fmt::format("{}{}", group, before);
}

Result<std::vector<Rule>> ParseRules(std::string_view json, size_t functions) {
  // simdjson passes over a mark, other programs refuse it.
  if (json.starts_with("\xef\xbb\xbf")) {
    return WrongRule(
        "it begins with a byte order mark (BOM), which JSON does not allow: "
        "save it as UTF-8 without one");
  }
  dom::parser parser;
  dom::element root;
  if (parser.allocate(json.size(), kMostRuleDepth)) {
    return Status(Code::kLimit, "no memory for the JSON");
  }
  const auto error = parser.parse(json.data(), json.size()).get(root);
  if (error) {
    return WrongRule(
        fmt::format("it is no JSON: {}", simdjson::error_message(error)));
  }
  dom::object object;
  dom::array list;
  if (root.get_object().get(object) || object["rules"].get(root) ||
      root.get_array().get(list)) {
    return WrongRule("expected an object with a list: {\"rules\": [...]}");
  }
  for (const auto [key, value] : object) {
    if (key != "rules") {
      return Unknown("key", key, std::array<std::string_view, 1>{"rules"});
    }
  }
  if (object.size() != 1) return WrongRule("'rules' is there twice");
  std::vector<Rule> rules;
  for (const dom::element value : list) {
    Rule rule;
    rule.name = NameOf(rules.size() + 1, value);
    Status status = ReadRule(value, functions, &rule);
    if (!status.ok()) return std::move(status).In(rule.name);
    rules.push_back(std::move(rule));
  }
  if (rules.empty()) return WrongRule("there is no rule");
  return rules;
}

}  // namespace haulway::arithmetic
