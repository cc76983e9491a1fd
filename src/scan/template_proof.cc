// Design: every path from a value to Python's modules goes through an attribute
// whose name begins with an underscore, or through a call. So a template is
// proven harmless if no attribute begins with an underscore, every attribute
// name that an expression could compute is a literal, and the template uses
// only functions, methods, filters and statements from fixed lists, under their
// own names. Tokens suffice to check that; they follow Jinja's lexer
// (jinja2/lexer.py).
//
// Alternative not taken: run Jinja's sandbox. It has been escaped repeatedly,
// and the verdict must hold for readers that have no sandbox.

#include "scan/template_proof.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/ascii.h"
#include "base/text.h"

namespace haulway::scan {

namespace {

using Names = const std::string_view[];

constexpr Names kStatements = {
    "for",        "endfor",        "if",     "elif",    "else",
    "endif",      "set",           "endset", "macro",   "endmacro",
    "generation", "endgeneration", "break",  "continue"};
constexpr Names kFunctions = {"range", "namespace", "dict", "raise_exception",
                              "strftime_now"};
constexpr Names kMethods = {
    "append",     "capitalize", "count",   "cycle",  "endswith", "find",
    "get",        "index",      "isdigit", "items",  "join",     "keys",
    "lower",      "lstrip",     "replace", "rsplit", "rstrip",   "split",
    "splitlines", "startswith", "strip",   "title",  "upper",    "values"};
constexpr Names kFilters = {
    "abs",     "capitalize", "count", "d",        "default", "dictsort",
    "e",       "escape",     "first", "float",    "indent",  "int",
    "items",   "join",       "last",  "length",   "list",    "lower",
    "replace", "reverse",    "round", "safe",     "string",  "title",
    "tojson",  "trim",       "upper", "wordcount"};
// Filters whose arguments name attributes, filters or tests.
constexpr Names kNamingFilters = {
    "groupby", "map",        "max",  "min", "reject", "rejectattr",
    "select",  "selectattr", "sort", "sum", "unique"};
// Attributes that lead from a generator, a frame or a function to the variables
// of a module, although their names do not begin with an underscore.
constexpr Names kInnerAttributes = {
    "ag_await",      "ag_code",      "ag_frame",     "cell_contents",
    "cr_await",      "cr_code",      "cr_frame",     "cr_origin",
    "f_back",        "f_builtins",   "f_code",       "f_generator",
    "f_globals",     "f_locals",     "func_closure", "func_code",
    "func_defaults", "func_globals", "gi_code",      "gi_frame",
    "gi_yieldfrom",  "im_class",     "im_func",      "im_self",
    "mro",           "tb_frame",     "tb_next"};
// Objects that frameworks and Jinja itself pass to templates. They give access
// to other objects.
constexpr Names kObjects = {"config",      "context", "cycler",
                            "environment", "g",       "joiner",
                            "lipsum",      "request", "self",
                            "session",     "url_for", "get_flashed_messages"};
constexpr Names kWords = {"and", "in",   "is",  "not",  "or",
                          "if",  "else", "for", "elif", "recursive"};

template <size_t kCount>
bool Has(const std::string_view (&names)[kCount], std::string_view name) {
  return std::ranges::find(names, name) != std::end(names);
}

struct Token {
  enum class Kind : uint8_t { kName, kNumber, kText, kSign, kBegin, kEnd };
  Kind kind;
  std::string_view text;  // Strings without quotes.
  uint64_t byte;
};
bool IsDigit(char c) { return c >= '0' && c <= '9'; }

// A Lexer returns the tokens of every block and expression: kBegin with the
// text "{%" or "{{", the tokens inside, kEnd. Run() returns a doubt where the
// text cannot be tokenized.
class Lexer {
 public:
  explicit Lexer(std::string_view text) : text_(text) {}

  std::optional<Doubt> Run(std::vector<Token>* tokens) {
    while (at_ + 1 < text_.size()) {
      const size_t begin = text_.find('{', at_);
      if (begin == text_.npos || begin + 1 >= text_.size()) break;
      at_ = begin;
      const std::string_view two = text_.substr(begin, 2);
      if (two == "{#") {
        const size_t end = text_.find("#}", begin + 2);
        if (end == text_.npos) return Wrong();
        at_ = end + 2;
      } else if (two == "{%" || two == "{{") {
        if (auto doubt = Block(two, tokens)) return doubt;
      } else {
        ++at_;
      }
    }
    return std::nullopt;
  }

 private:
  Doubt Wrong() const { return {"a template that is not understood", at_}; }

  std::optional<Doubt> Block(std::string_view begin,
                             std::vector<Token>* tokens) {
    tokens->push_back({Token::Kind::kBegin, begin, at_});
    at_ += 2;
    if (at_ < text_.size() && (text_[at_] == '-' || text_[at_] == '+')) ++at_;
    const std::string_view end = begin == "{%" ? "%}" : "}}";
    int open = 0;
    while (at_ < text_.size()) {
      std::string_view rest = text_.substr(at_);
      const char c = rest[0];
      const size_t sign = c == '-' || c == '+' ? 1 : 0;
      if (open == 0 && rest.substr(sign).starts_with(end)) {
        tokens->push_back({Token::Kind::kEnd, end, at_});
        at_ += sign + 2;
        return std::nullopt;
      }
      if (c == ' ' || c == '\t' || c == '\n' || c == '\r') {
        ++at_;
      } else if (c == '"' || c == '\'') {
        size_t i = 1;
        while (i < rest.size() && rest[i] != c) i += rest[i] == '\\' ? 2 : 1;
        if (i >= rest.size()) return Wrong();
        tokens->push_back({Token::Kind::kText, rest.substr(1, i - 1), at_});
        at_ += i + 1;
      } else if (IsWordByte(c)) {
        size_t i = 0;
        while (i < rest.size() && IsWordByte(rest[i])) ++i;
        // The fraction of a number: "1.5".
        if (IsDigit(c) && i + 1 < rest.size() && rest[i] == '.' &&
            IsDigit(rest[i + 1])) {
          ++i;
          while (i < rest.size() && IsWordByte(rest[i])) ++i;
        }
        tokens->push_back(
            {IsDigit(c) ? Token::Kind::kNumber : Token::Kind::kName,
             rest.substr(0, i), at_});
        at_ += i;
      } else {
        constexpr std::string_view kSigns = "+-/*%~[](){}<>=!.:|,;";
        if (kSigns.find(c) == kSigns.npos) return Wrong();
        open += c == '(' || c == '[' || c == '{' ? 1 : 0;
        open -= c == ')' || c == ']' || c == '}' ? 1 : 0;
        if (open < 0) return Wrong();
        tokens->push_back({Token::Kind::kSign, rest.substr(0, 1), at_});
        ++at_;
      }
    }
    return Wrong();
  }

  std::string_view text_;
  size_t at_ = 0;
};

// Returns whether a literal names only harmless attributes, filters or tests.
bool IsPlainName(std::string_view text) {
  const bool is_plain = std::ranges::all_of(text, [](char c) {
    return (IsWordByte(c) || c == '.' || c == '-' || c == ' ') &&
           static_cast<unsigned char>(c) < 0x80;
  });
  if (!is_plain || text.empty()) return false;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find('.', at), text.size());
    const std::string_view part = text.substr(at, end - at);
    if (part.starts_with('_') || Has(kInnerAttributes, part)) return false;
    at = end + 1;
  }
  return true;
}

class Checker {
 public:
  explicit Checker(std::vector<Token> tokens) : tokens_(std::move(tokens)) {
    for (size_t i = 0; i + 2 < tokens_.size(); ++i) {
      if (tokens_[i].kind == Token::Kind::kBegin &&
          tokens_[i + 1].text == "macro" &&
          tokens_[i + 2].kind == Token::Kind::kName) {
        macros_.insert(tokens_[i + 2].text);
      }
    }
    for (size_t i = 0; i < tokens_.size(); ++i) {
      if (tokens_[i].kind != Token::Kind::kName || IsAttribute(i)) continue;
      if (tokens_[i].text == "recursive") recurses_ = true;
      // Jinja's loop is only called, or has its attributes read.
      if (tokens_[i].text == "loop" && !Is(i + 1, ".") && !Is(i + 1, "(")) {
        loop_is_value_ = true;
      }
    }
  }

  std::optional<Doubt> Run() {
    for (size_t i = 0; i < tokens_.size(); ++i) {
      if (!IsHarmless(i)) {
        return Doubt{fmt::format("a template of Jinja that is not shown to be "
                                 "harmless, by {}",
                                 Quote(tokens_[i].text)),
                     tokens_[i].byte};
      }
    }
    return std::nullopt;
  }

 private:
  bool Is(size_t i, std::string_view sign) const {
    return i < tokens_.size() && tokens_[i].kind == Token::Kind::kSign &&
           tokens_[i].text == sign;
  }
  bool IsKind(size_t i, Token::Kind kind) const {
    return i < tokens_.size() && tokens_[i].kind == kind;
  }
  // Returns whether token `i` is the name of an attribute.
  bool IsAttribute(size_t i) const { return i > 0 && Is(i - 1, "."); }
  // Returns whether a value ends before token `i`.
  bool EndsValue(size_t i) const {
    return i > 0 &&
           (Is(i - 1, ")") || Is(i - 1, "]") || Is(i - 1, "}") ||
            IsKind(i - 1, Token::Kind::kText) ||
            IsKind(i - 1, Token::Kind::kNumber) ||
            (IsKind(i - 1, Token::Kind::kName) &&
             (!Has(kWords, tokens_[i - 1].text) || IsAttribute(i - 1))));
  }

  bool IsHarmless(size_t i) const {
    const Token& token = tokens_[i];
    switch (token.kind) {
      case Token::Kind::kBegin:
        return token.text == "{{" || (IsKind(i + 1, Token::Kind::kName) &&
                                      Has(kStatements, tokens_[i + 1].text));
      case Token::Kind::kName:
        return IsHarmlessName(i);
      case Token::Kind::kSign:
        if (token.text == "[" && EndsValue(i)) return IsHarmlessSubscript(i);
        if (token.text == "(" && EndsValue(i)) {
          // IsHarmlessName() checks calls of names.
          return IsKind(i - 1, Token::Kind::kName);
        }
        return true;
      default:
        return true;
    }
  }

  bool IsHarmlessName(size_t i) const {
    const std::string_view name = tokens_[i].text;
    if (name.starts_with('_') || name.find("__") != name.npos ||
        std::ranges::any_of(name, [](char c) {
          return static_cast<unsigned char>(c) >= 0x80;
        })) {
      return false;
    }
    if (IsKind(i - 1, Token::Kind::kBegin) && tokens_[i - 1].text == "{%") {
      return true;  // A statement; another check allows only those in the list.
    }
    const bool called = Is(i + 1, "(");
    if (IsAttribute(i)) {
      return called ? Has(kMethods, name) : !Has(kInnerAttributes, name);
    }
    if (Is(i - 1, "|")) {
      if (name == "join") return HasOneArgument(i + 1);
      if (Has(kFilters, name)) return true;
      return Has(kNamingFilters, name) && NamesPlainly(i + 1);
    }
    if (Has(kWords, name)) return true;
    const bool tested = i > 0 && (tokens_[i - 1].text == "is" ||
                                  (i > 1 && tokens_[i - 1].text == "not" &&
                                   tokens_[i - 2].text == "is"));
    if (tested && IsKind(i - 1, Token::Kind::kName)) return true;
    if (Has(kObjects, name)) return false;
    // A callable name must be called, and a called name must be a callable in
    // the lists.
    const bool callable = Has(kFunctions, name) || macros_.contains(name);
    const bool is_loop = name == "loop" && recurses_ && !loop_is_value_;
    return called ? callable || is_loop : !callable;
  }

  // Returns whether the call whose arguments begin at `i` has at most one, and
  // not by its name.
  bool HasOneArgument(size_t i) const {
    if (!Is(i, "(")) return true;
    constexpr size_t kMostTokens = 1000;
    const size_t end = std::min(tokens_.size(), i + kMostTokens);
    int open = 0;
    for (; i < end && tokens_[i].kind != Token::Kind::kEnd; ++i) {
      if (Is(i, "(") || Is(i, "[") || Is(i, "{")) ++open;
      if (Is(i, ")") || Is(i, "]") || Is(i, "}")) --open;
      if (open == 0) return true;
      if (open == 1 && (Is(i, ",") || Is(i, "=") || Is(i, "*"))) return false;
    }
    return false;
  }

  // Returns whether the arguments that begin at `i` are none, or literals of
  // plain names.
  bool NamesPlainly(size_t i) const {
    if (!Is(i, "(")) return true;
    ++i;
    for (int open = 1; open > 0; ++i) {
      if (i >= tokens_.size() || tokens_[i].kind == Token::Kind::kEnd)
        return false;
      if (Is(i, ")")) {
        --open;
        continue;
      }
      if (Is(i, ",") || Is(i, "=")) continue;
      if (IsKind(i, Token::Kind::kNumber)) continue;
      if (IsKind(i, Token::Kind::kText) && IsPlainName(tokens_[i].text) &&
          tokens_[i].text != "attr") {
        continue;
      }
      constexpr Names kPlain = {
          "attribute", "default", "reverse", "case_sensitive", "start", "true",
          "false",     "none",    "True",    "False",          "None"};
      if (IsKind(i, Token::Kind::kName) && Has(kPlain, tokens_[i].text))
        continue;
      return false;
    }
    return true;
  }

  // Returns whether the subscript is like "['role']", "[0]", "[1:]",
  // "[loop.index0 - 1]" or "[-1]".
  bool IsHarmlessSubscript(size_t i) const {
    if (IsKind(i + 1, Token::Kind::kText) && Is(i + 2, "]")) {
      return IsPlainName(tokens_[i + 1].text);
    }
    for (++i; i < tokens_.size() && !Is(i, "]"); ++i) {
      const std::string_view text = tokens_[i].text;
      if (IsKind(i, Token::Kind::kNumber) || Is(i, ":") || Is(i, "-") ||
          Is(i, "+")) {
        continue;
      }
      constexpr Names kOfLoop = {"index", "index0", "revindex", "revindex0",
                                 "length"};
      if (IsKind(i, Token::Kind::kName) && text == "loop" && Is(i + 1, ".") &&
          IsKind(i + 2, Token::Kind::kName) &&
          Has(kOfLoop, tokens_[i + 2].text)) {
        i += 2;
        continue;
      }
      return false;
    }
    return true;
  }

  std::vector<Token> tokens_;
  std::set<std::string_view> macros_;
  bool recurses_ = false;       // A loop calls itself.
  bool loop_is_value_ = false;  // The loop is given away, or another value.
};

}  // namespace

std::optional<Doubt> DoubtOfTemplate(std::string_view text) {
  std::vector<Token> tokens;
  if (auto doubt = Lexer(text).Run(&tokens)) return doubt;
  return Checker(std::move(tokens)).Run();
}

}  // namespace haulway::scan
