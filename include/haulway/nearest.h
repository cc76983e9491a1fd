// Finds the name that was probably meant by one that does not exist.

#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "haulway/status.h"

namespace haulway {

// A NearestName compares a word with names and keeps the nearest one, if it is
// so near that the word may be a slip of the keyboard: at most two characters
// differ, and at most a third of the word. In the word, `*` stands for any
// characters and `?` for one.
class HAULWAY_EXPORT NearestName {
 public:
  explicit NearestName(std::string_view word);

  void Consider(std::string_view name);

  // The nearest name so far, or "".
  const std::string& name() const { return name_; }
  // "; did you mean 'NAME'?", or "".
  std::string hint() const;

 private:
  size_t Distance(std::string_view name) const;

  std::string word_;
  std::string name_;
  size_t least_;  // Only nearer names are kept.
};

// Returns hint() after comparing with all names.
template <class Names, class Projection>
std::string HintOf(std::string_view word, const Names& names,
                   Projection name_of) {
  NearestName nearest(word);
  for (const auto& one : names) nearest.Consider(name_of(one));
  return nearest.hint();
}

}  // namespace haulway
