// Regular expressions written by users: one dialect for the command line, the
// library and Python.

#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "haulway/status.h"

namespace re2 {
class RE2;
}

namespace haulway {

// A Regex is a compiled expression in RE2 syntax, which is the syntax of Perl
// and Python without look-around and back-references. Matching takes time and
// memory linear in the text, for every expression: the names come from
// untrusted files.
//
// Threads: const calls from any number of threads.
class Regex {
 public:
  // Compiles `pattern`. Fails with kInvalidArgument and the error in the
  // pattern.
  static Result<Regex> Make(std::string_view pattern);
  Regex(Regex&& other) noexcept;
  Regex& operator=(Regex&& other) noexcept;
  ~Regex();

  // Returns whether some part of `text` matches.
  bool Finds(std::string_view text) const;

  // Checks that ReplaceAll() accepts `replacement`: \1 to \99, \g<1> and
  // \g<name> are groups, \0 and \g<0> are the whole match, \\ is a backslash.
  // Fails with kInvalidArgument for groups that the expression does not have
  // and for other letters and digits after a backslash.
  Status CheckReplacement(std::string_view replacement) const;
  // Replaces every match, like Python's re.sub(). Requires:
  // CheckReplacement(replacement) succeeds.
  std::string ReplaceAll(std::string_view text,
                         std::string_view replacement) const;

 private:
  explicit Regex(std::unique_ptr<const re2::RE2> compiled);
  std::unique_ptr<const re2::RE2> compiled_;
};

}  // namespace haulway
