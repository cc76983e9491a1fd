// Rules as they are written, in JSON:
//
//   {"rules": [
//     {"source": ["mlp.experts.*.up_proj.weight"],
//      "target": ["mlp.experts.up_proj"],
//      "ops": [{"stack": {"dim": 0}}]},
//     {"rename": ["^model\\.", "language_model."]}]}

#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "arithmetic/operations.h"
#include "base/regex.h"
#include "haulway/status.h"

namespace haulway::arithmetic {

// The names of tensors of a group: what is before them, up to a dot, is the
// name of the group. A `*` stands for a whole number between dots.
struct NamePattern {
  std::string before;  // The `*`, or everything if there is none.
  std::string after;

  // A name that matches.
  struct Match {
    std::string_view group;
    uint64_t number = 0;
  };
  // Returns nullopt for a name that does not match.
  std::optional<Match> Find(std::string_view name, bool is_numbered) const;
  // Returns the name of one tensor.
  std::string Name(std::string_view group,
                   std::optional<uint64_t> number) const;
};

// All patterns of a list have a `*`, or none has.
struct NamePatterns {
  std::vector<NamePattern> patterns;
  bool is_numbered = false;
};

struct Renaming {
  Regex pattern;
  std::string replacement;
};

struct Rule {
  std::string name;  // For messages.
  // A rule has these, or renames.
  NamePatterns sources, targets;
  std::vector<RuleOperation> operations;
  std::optional<size_t> function;  // Called after the operations.
  std::optional<Renaming> renaming;
};

// Parses rules. `functions`: how many there are. Fails with kInvalidArgument,
// naming the rule, for what is no JSON or not of this form.
Result<std::vector<Rule>> ParseRules(std::string_view json, size_t functions);

}  // namespace haulway::arithmetic
