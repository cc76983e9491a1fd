// Regular expressions that users write: one dialect for the command line, the
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

// A Regex is a compiled expression in the syntax of RE2, which is that of Perl
// and Python without look-around and back-references. Matching takes time and
// memory linear in the text, whatever the expression: names come from files
// that nobody checked.
//
// Threads: const calls from any number of threads.
class Regex {
 public:
  // Fails with kInvalidArgument and says what is wrong with the expression.
  static Result<Regex> Make(std::string_view pattern);
  Regex(Regex&& other) noexcept;
  Regex& operator=(Regex&& other) noexcept;
  ~Regex();

  // Whether some part of `text` matches.
  bool Finds(std::string_view text) const;

  // Whether ReplaceAll() takes `replacement`: \1 to \99 and \g<1> or \g<name>
  // are groups, \0 and \g<0> the whole match, \\ a backslash. Fails with
  // kInvalidArgument for groups that the expression does not have and for
  // other letters and digits after a backslash.
  Status CheckReplacement(std::string_view replacement) const;
  // Replaces every match, as re.sub() of Python does.
  // Requires: CheckReplacement(replacement).
  std::string ReplaceAll(std::string_view text,
                         std::string_view replacement) const;

 private:
  explicit Regex(std::unique_ptr<const re2::RE2> compiled);
  std::unique_ptr<const re2::RE2> compiled_;
};

}  // namespace haulway
