#include "arithmetic/expression.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <system_error>

#include "base/text.h"

namespace haulway::arithmetic {

namespace {

constexpr size_t kMostCharacters = 256;
constexpr int kMostNesting = 32;

bool IsDigit(char c) { return c >= '0' && c <= '9'; }
bool IsLetter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

// Parses by recursive descent, and computes on the way.
class ExpressionParser {
 public:
  ExpressionParser(std::string_view text, const NamedNumber& named)
      : text_(text), rest_(text), named_(named) {}

  Result<int64_t> All() {
    if (text_.size() > kMostCharacters) {
      return Status(Code::kInvalidArgument,
                    fmt::format("an expression has {} characters: expected {} "
                                "at most",
                                text_.size(), kMostCharacters));
    }
    HAULWAY_ASSIGN(const int64_t value, Sum(0));
    if (Next() != '\0') return Wrong();
    return value;
  }

 private:
  // Returns the next character that is no space, and leaves it; 0 at the end.
  char Next() {
    while (rest_.starts_with(' ')) rest_.remove_prefix(1);
    return rest_.empty() ? '\0' : rest_.front();
  }
  // Returns the next character if it is one of two, and removes it; else 0.
  char Take(char one, char other) {
    const char next = Next();
    if (next == '\0' || (next != one && next != other)) return '\0';
    rest_.remove_prefix(1);
    return next;
  }

  Result<int64_t> Sum(int depth) {
    HAULWAY_ASSIGN(int64_t value, Product(depth));
    while (const char sign = Take('+', '-')) {
      HAULWAY_ASSIGN(const int64_t next, Product(depth));
      if (sign == '+' ? __builtin_add_overflow(value, next, &value)
                      : __builtin_sub_overflow(value, next, &value)) {
        return TooLarge();
      }
    }
    return value;
  }

  Result<int64_t> Product(int depth) {
    HAULWAY_ASSIGN(int64_t value, Factor(depth));
    while (const char sign = Take('*', '/')) {
      HAULWAY_ASSIGN(const int64_t next, Factor(depth));
      if (sign == '*') {
        if (__builtin_mul_overflow(value, next, &value)) return TooLarge();
        continue;
      }
      // The only quotient that overflows is that of -2^63 and -1.
      if (next <= 0 || value % next != 0) {
        return Status(Code::kMismatch,
                      fmt::format("{} cannot be divided by {}; in {}", value,
                                  next, QuotePath(text_)));
      }
      value /= next;
    }
    return value;
  }

  Result<int64_t> Factor(int depth) {
    if (depth == kMostNesting) {
      return Status(Code::kInvalidArgument,
                    fmt::format("{} is nested more than {} deep",
                                QuotePath(text_), kMostNesting));
    }
    if (Take('-', '-') != '\0') {
      HAULWAY_ASSIGN(int64_t value, Factor(depth + 1));
      if (__builtin_sub_overflow(int64_t{0}, value, &value)) return TooLarge();
      return value;
    }
    if (Take('(', '(') != '\0') {
      HAULWAY_ASSIGN(const int64_t value, Sum(depth + 1));
      if (Take(')', ')') == '\0') return Wrong();
      return value;
    }
    const char first = Next();
    if (IsLetter(first)) {
      const auto end = std::ranges::find_if_not(
          rest_, [](char c) { return IsLetter(c) || IsDigit(c) || c == '.'; });
      const auto length = static_cast<size_t>(end - rest_.begin());
      const std::string_view name = rest_.substr(0, length);
      rest_.remove_prefix(length);
      return named_(name);
    }
    if (!IsDigit(first)) return Wrong();
    int64_t value = 0;
    const auto [end, error] =
        std::from_chars(rest_.data(), rest_.data() + rest_.size(), value);
    if (error != std::errc()) return TooLarge();
    rest_.remove_prefix(static_cast<size_t>(end - rest_.data()));
    return value;
  }

  Status Wrong() const {
    return Status(Code::kInvalidArgument,
                  fmt::format("{} is no expression: expected whole numbers, "
                              "names of config.json, + - * / and parentheses",
                              QuotePath(text_)));
  }
  Status TooLarge() const {
    return Status(Code::kMismatch,
                  fmt::format("{} passes 2^63", QuotePath(text_)));
  }

  const std::string_view text_;
  std::string_view rest_;
  const NamedNumber& named_;
};

}  // namespace

Result<int64_t> Evaluate(std::string_view expression,
                         const NamedNumber& named) {
  return ExpressionParser(expression, named).All();
}

}  // namespace haulway::arithmetic
