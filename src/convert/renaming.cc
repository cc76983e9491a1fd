#include <memory>
#include <string>
#include <utility>

#include "base/regex.h"
#include "haulway/convert.h"

namespace haulway {

Result<Renaming> MakeRenaming(std::string_view pattern,
                              std::string_view replacement) {
  HAULWAY_ASSIGN(Regex made, Regex::Make(pattern));
  HAULWAY_TRY(made.CheckReplacement(replacement));
  Renaming rule;
  rule.pattern = pattern;
  rule.apply = [regex = std::make_shared<const Regex>(std::move(made)),
                replacement = std::string(replacement)](std::string_view name) {
    return regex->ReplaceAll(name, replacement);
  };
  return rule;
}

}  // namespace haulway
