// Design: patterns become globs or regular expressions once, and each name is
// matched against all of them. A glob is matched by characters, as Python's
// fnmatch does, where a byte that is not UTF-8 is a character too.
//
// Considered and rejected: translating globs to regular expressions. RE2 needs
// UTF-8, and names of tensors are any bytes.

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/regex.h"
#include "base/text.h"
#include "haulway/nearest.h"
#include "haulway/select.h"

namespace haulway {

namespace {

// Removes one character from the front of `text` and returns its code point. A
// byte that is not valid UTF-8 counts as a character above all code points.
uint32_t TakeCharacter(std::string_view* text) {
  constexpr uint32_t kNoCharacter = 0x110000;
  const auto at = [&](size_t i) { return static_cast<uint8_t>((*text)[i]); };
  const size_t length = Utf8SequenceLength(*text, /*surrogates=*/true);
  uint32_t character = at(0);
  if (length == 0) character += kNoCharacter;
  if (length > 1) {
    character = at(0) & (0xFFu >> (length + 1));
    for (size_t i = 1; i < length; ++i) {
      character = character << 6 | (at(i) & 0x3Fu);
    }
  }
  text->remove_prefix(std::max<size_t>(length, 1));
  return character;
}

// A Glob is a parsed pattern: runs of tokens, separated by stars.
class Glob {
 public:
  explicit Glob(std::string_view pattern) {
    runs_.emplace_back();
    while (!pattern.empty()) {
      if (pattern.front() == '[' && AddSet(&pattern)) continue;
      const uint32_t character = TakeCharacter(&pattern);
      if (character == '*') {
        runs_.emplace_back();
      } else if (character == '?') {
        runs_.back().push_back({.negated = true});
      } else {
        runs_.back().push_back({.ranges = {{character, character}}});
      }
    }
  }

  // Matches each run at its first possible place, which leaves the most text
  // for the later runs. Takes at most the product of both lengths.
  bool Matches(std::string_view name) const {
    std::vector<uint32_t> text;
    text.reserve(name.size());
    while (!name.empty()) text.push_back(TakeCharacter(&name));
    std::span<const uint32_t> rest = text;
    const Run& first = runs_.front();
    if (!Fits(first, rest)) return false;
    if (runs_.size() == 1) return rest.size() == first.size();
    rest = rest.subspan(first.size());
    for (size_t i = 1; i + 1 < runs_.size(); ++i) {
      while (!Fits(runs_[i], rest)) {
        if (rest.empty()) return false;
        rest = rest.subspan(1);
      }
      rest = rest.subspan(runs_[i].size());
    }
    const Run& last = runs_.back();
    return rest.size() >= last.size() &&
           Fits(last, rest.subspan(rest.size() - last.size()));
  }

 private:
  struct Range {
    uint32_t low, high;
  };
  // Matches one character that is in some range or, if negated, in none.
  struct Token {
    bool negated = false;
    std::vector<Range> ranges = {};

    bool Has(uint32_t character) const {
      const bool found = std::ranges::any_of(ranges, [&](const Range& range) {
        return range.low <= character && character <= range.high;
      });
      return found != negated;
    }
  };
  using Run = std::vector<Token>;

  static bool Fits(const Run& run, std::span<const uint32_t> text) {
    return text.size() >= run.size() &&
           std::equal(run.begin(), run.end(), text.begin(),
                      [](const Token& token, uint32_t character) {
                        return token.Has(character);
                      });
  }

  // Parses a set at the front of `pattern`. Returns false if the set has no
  // end; then '[' is a literal character.
  bool AddSet(std::string_view* pattern) {
    const size_t first = pattern->starts_with("[!") ? 2 : 1;
    // A ']' in first place is a member of the set.
    const size_t end = pattern->find(']', first + 1);
    if (end == pattern->npos) return false;
    Token token = {.negated = first == 2};
    std::vector<uint32_t> all;
    std::string_view inside = pattern->substr(first, end - first);
    while (!inside.empty()) all.push_back(TakeCharacter(&inside));
    for (size_t i = 0; i < all.size(); ++i) {
      const bool is_range = i + 2 < all.size() && all[i + 1] == '-';
      token.ranges.push_back({all[i], is_range ? all[i + 2] : all[i]});
      if (is_range) i += 2;
    }
    runs_.back().push_back(std::move(token));
    pattern->remove_prefix(end + 1);
    return true;
  }

  std::vector<Run> runs_;
};

class Pattern {
 public:
  static Result<Pattern> Make(const std::string& text) {
    Pattern pattern(text);
    if (text.size() <= 2 || text.front() != '/' || text.back() != '/') {
      pattern.glob_.emplace(text);
      return pattern;
    }
    HAULWAY_ASSIGN(pattern.regex_,
                   Regex::Make(text.substr(1, text.size() - 2)));
    return pattern;
  }

  bool Matches(std::string_view name) const {
    if (glob_.has_value()) return glob_->Matches(name);
    return regex_->Finds(name);
  }
  const std::string& text() const { return text_; }
  bool is_glob() const { return glob_.has_value(); }

 private:
  explicit Pattern(std::string text) : text_(std::move(text)) {}

  std::string text_;
  std::optional<Glob> glob_;
  std::optional<Regex> regex_;
};

Result<std::vector<Pattern>> Compile(const std::vector<std::string>& texts) {
  std::vector<Pattern> patterns;
  for (const std::string& text : texts) {
    HAULWAY_ASSIGN(Pattern pattern, Pattern::Make(text));
    patterns.push_back(std::move(pattern));
  }
  return patterns;
}

}  // namespace

struct NameFilter::Rules {
  std::optional<std::vector<Pattern>> include;
  std::vector<Pattern> exclude;
  std::string prefix;
};

NameFilter::NameFilter() = default;
NameFilter::NameFilter(NameFilter&& other) noexcept = default;
NameFilter& NameFilter::operator=(NameFilter&& other) noexcept = default;
NameFilter::~NameFilter() = default;

Result<NameFilter> NameFilter::Make(const NameOptions& options) {
  NameFilter filter;
  if (!options.include.has_value() && options.exclude.empty() &&
      options.prefix.empty()) {
    return filter;
  }
  auto rules = std::make_unique<Rules>();
  if (options.include.has_value()) {
    HAULWAY_ASSIGN(rules->include, Compile(*options.include));
  }
  HAULWAY_ASSIGN(rules->exclude, Compile(options.exclude));
  rules->prefix = options.prefix;
  filter.rules_ = std::move(rules);
  return filter;
}

bool NameFilter::Matches(std::string_view name) const {
  if (all()) return true;
  if (!name.starts_with(rules_->prefix)) return false;
  name.remove_prefix(rules_->prefix.size());
  const auto matches = [&](const Pattern& pattern) {
    return pattern.Matches(name);
  };
  if (std::ranges::any_of(rules_->exclude, matches)) return false;
  return !rules_->include.has_value() ||
         std::ranges::any_of(*rules_->include, matches);
}

bool NameFilter::Mentions(std::string_view name) const {
  if (all() || !rules_->include.has_value()) return true;
  if (!name.starts_with(rules_->prefix)) return false;
  name.remove_prefix(rules_->prefix.size());
  const auto matches = [&](const Pattern& pattern) {
    return pattern.Matches(name);
  };
  return std::ranges::any_of(*rules_->include, matches) ||
         std::ranges::any_of(rules_->exclude, matches);
}

Status NameFilter::CheckUsed(std::span<const std::string_view> names) const {
  if (all()) return Status();
  std::vector<std::string_view> rest;  // Names without the prefix.
  for (std::string_view name : names) {
    if (!name.starts_with(rules_->prefix)) continue;
    name.remove_prefix(rules_->prefix.size());
    rest.push_back(name);
  }
  if (rest.empty() && !rules_->prefix.empty()) {
    return Status(Code::kNotFound, fmt::format("no name begins with prefix {}",
                                               Quote(rules_->prefix)));
  }
  const auto check = [&](std::string_view option,
                         const Pattern& pattern) -> Status {
    const bool is_used = std::ranges::any_of(
        rest, [&](std::string_view name) { return pattern.Matches(name); });
    if (is_used) return Status();
    const std::string hint =
        pattern.is_glob() ? HintOf(pattern.text(), rest, std::identity()) : "";
    return Status(Code::kNotFound,
                  fmt::format("{} {} matches no name{}", option,
                              Quote(pattern.text()), hint));
  };
  if (rules_->include.has_value()) {
    for (const Pattern& pattern : *rules_->include) {
      HAULWAY_TRY(check("include", pattern));
    }
  }
  for (const Pattern& pattern : rules_->exclude) {
    HAULWAY_TRY(check("exclude", pattern));
  }
  return Status();
}

Status NameFilter::CheckUsed(
    std::initializer_list<const Checkpoint*> checkpoints) const {
  if (all()) return Status();
  std::vector<std::string_view> names;
  for (const Checkpoint* const one : checkpoints) {
    for (const Entry& entry : one->entries()) names.push_back(entry.name);
  }
  return CheckUsed(names).Of((*checkpoints.begin())->source().name());
}

}  // namespace haulway
