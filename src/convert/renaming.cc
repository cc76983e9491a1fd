#include <fmt/format.h>
#include <regex.h>

#include <array>
#include <memory>
#include <string>
#include <utility>

#include "base/text.h"
#include "haulway/convert.h"

namespace haulway {

namespace {

// Not std::regex: it recurses once per character, and a file may hold a name
// long enough to run it out of stack.
class Renaming {
 public:
  static Result<std::shared_ptr<const Renaming>> Make(
      std::string_view pattern, std::string_view replacement) {
    auto renaming = std::make_shared<Renaming>();
    renaming->replacement_ = replacement;
    const std::string text(pattern);
    const int wrong = regcomp(&renaming->regex_, text.c_str(), REG_EXTENDED);
    if (wrong != 0) {
      std::array<char, 128> why{};
      regerror(wrong, &renaming->regex_, why.data(), why.size());
      return Status(Code::kInvalidArgument,
                    fmt::format("no regular expression: {}", why.data()))
          .In(Quote(pattern));
    }
    renaming->is_compiled_ = true;
    return std::shared_ptr<const Renaming>(std::move(renaming));
  }
  Renaming() = default;
  Renaming(const Renaming&) = delete;
  Renaming& operator=(const Renaming&) = delete;
  ~Renaming() {
    if (is_compiled_) regfree(&regex_);
  }

  std::string Apply(std::string_view name) const {
    const std::string text(name);
    std::string out;
    size_t at = 0;
    Groups groups;
    int flags = 0;
    while (at <= text.size() &&
           regexec(&regex_, text.c_str() + at, groups.size(), groups.data(),
                   flags) == 0) {
      const auto begin = static_cast<size_t>(groups[0].rm_so);
      const auto end = static_cast<size_t>(groups[0].rm_eo);
      out.append(text, at, begin);
      Expand(text, at, groups, &out);
      if (end == begin) {  // Goes on behind the next character.
        if (at + end < text.size()) out += text[at + end];
        at += end + 1;
      } else {
        at += end;
      }
      flags = REG_NOTBOL;
    }
    if (at < text.size()) out.append(text, at);
    return out;
  }

 private:
  using Groups = std::array<regmatch_t, 10>;

  void Expand(const std::string& text, size_t at, const Groups& groups,
              std::string* out) const {
    for (size_t i = 0; i < replacement_.size(); ++i) {
      const char c = replacement_[i];
      if (c != '\\' || i + 1 == replacement_.size()) {
        *out += c;
        continue;
      }
      const char next = replacement_[++i];
      if (next < '0' || next > '9') {
        *out += next;
        continue;
      }
      const regmatch_t& group = groups[static_cast<size_t>(next - '0')];
      if (group.rm_so < 0) continue;
      out->append(text, at + static_cast<size_t>(group.rm_so),
                  static_cast<size_t>(group.rm_eo - group.rm_so));
    }
  }

  regex_t regex_{};
  bool is_compiled_ = false;
  std::string replacement_;
};

}  // namespace

Result<RenameFunction> MakeRenaming(std::string_view pattern,
                                    std::string_view replacement) {
  HAULWAY_ASSIGN(std::shared_ptr<const Renaming> renaming,
                 Renaming::Make(pattern, replacement));
  return RenameFunction(
      [renaming = std::move(renaming)](std::string_view name) {
        return renaming->Apply(name);
      });
}

}  // namespace haulway
