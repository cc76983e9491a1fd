#include "haulway/nearest.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/text.h"

namespace haulway {

NearestName::NearestName(std::string_view word) : word_(word) {
  const auto wild = static_cast<size_t>(std::ranges::count(word, '*'));
  least_ = std::min<size_t>(2, (word.size() - wild) / 3) + 1;
}

void NearestName::Consider(std::string_view name) {
  const size_t distance = Distance(name);
  if (distance >= least_) return;
  least_ = distance;
  name_ = name;
}

std::string NearestName::hint() const {
  return name_.empty() ? "" : fmt::format("; did you mean {}?", Quote(name_));
}

// Returns the edit distance to a name: insertions, deletions, substitutions and
// exchanges of neighbors; least_ if it is not smaller.
size_t NearestName::Distance(std::string_view name) const {
  const bool is_wild = word_.find('*') != word_.npos;
  const size_t longer = std::max(word_.size(), name.size());
  const size_t shorter = std::min(word_.size(), name.size());
  if (!is_wild && longer - shorter >= least_) return least_;
  // How much the beginnings of the name differ from that of the word: up to
  // the character, the one before it, and the one before that.
  std::vector<size_t> row(name.size() + 1), last(row), earlier(row);
  for (size_t j = 0; j < row.size(); ++j) row[j] = j;
  size_t least_of_last = 0;
  for (size_t i = 0; i < word_.size(); ++i) {
    const char c = word_[i];
    std::swap(earlier, last);
    std::swap(last, row);
    row[0] = last[0] + (c == '*' ? 0 : 1);
    size_t least_of_row = row[0];
    for (size_t j = 0; j < name.size(); ++j) {
      size_t& here = row[j + 1];
      if (c == '*') {
        here = std::min(last[j + 1], row[j]);
      } else {
        const size_t replaced = last[j] + (c == name[j] || c == '?' ? 0 : 1);
        here = std::min({replaced, row[j] + 1, last[j + 1] + 1});
        if (i > 0 && j > 0 && c == name[j - 1] && word_[i - 1] == name[j]) {
          here = std::min(here, earlier[j - 1] + 1);
        }
      }
      least_of_row = std::min(least_of_row, here);
    }
    if (std::min(least_of_row, least_of_last) >= least_) return least_;
    least_of_last = least_of_row;
  }
  return std::min(row.back(), least_);
}

}  // namespace haulway
