#include "filter.h"

#include <fnmatch.h>
#include <regex.h>

#include <algorithm>

namespace haulway::cli {
namespace {

bool Matches(const std::string& name, const std::string& pattern) {
  if (pattern.size() > 2 && pattern.front() == '/' && pattern.back() == '/') {
    // Not std::regex: it recurses once per character, and a file may hold a
    // name long enough to run it out of stack.
    regex_t compiled;
    if (regcomp(&compiled, pattern.substr(1, pattern.size() - 2).c_str(),
                REG_EXTENDED | REG_NOSUB) != 0) {
      return false;
    }
    const bool found = regexec(&compiled, name.c_str(), 0, nullptr, 0) == 0;
    regfree(&compiled);
    return found;
  }
  return fnmatch(pattern.c_str(), name.c_str(), 0) == 0;
}

bool Digit(char c) { return c >= '0' && c <= '9'; }

}  // namespace

bool Selected(std::string_view name, const std::vector<std::string>& include,
              const std::vector<std::string>& exclude) {
  const std::string text(name);
  const auto matches = [&](const std::string& p) { return Matches(text, p); };
  if (std::ranges::any_of(exclude, matches)) return false;
  return include.empty() || std::ranges::any_of(include, matches);
}

bool NaturalLess(std::string_view a, std::string_view b) {
  const auto number = [](std::string_view& text) {
    size_t size = 0;
    while (size < text.size() && Digit(text[size])) ++size;
    std::string_view digits = text.substr(0, size);
    text.remove_prefix(size);
    while (digits.size() > 1 && digits[0] == '0') digits.remove_prefix(1);
    return digits;
  };
  while (!a.empty() && !b.empty()) {
    if (Digit(a[0]) && Digit(b[0])) {
      const std::string_view left = number(a), right = number(b);
      if (left.size() != right.size()) return left.size() < right.size();
      if (left != right) return left < right;
    } else {
      if (a[0] != b[0]) return a[0] < b[0];
      a.remove_prefix(1);
      b.remove_prefix(1);
    }
  }
  return a.size() < b.size();
}

}  // namespace haulway::cli
