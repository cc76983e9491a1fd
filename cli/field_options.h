// Makes command-line options from a table of fields; see haulway/fields.h.

#pragma once

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "haulway/fields.h"
#include "haulway/open.h"
#include "haulway/options.h"

namespace haulway::cli {

// A FieldOption adds the option of one field. Name, check and help follow from
// the type of the member. Its current value is the default in the help.
class FieldOption {
 public:
  // `option` must outlive this.
  FieldOption(CLI::App& app, std::string_view name, std::string_view meaning,
              const Option& option);

  void Add(bool* value) const;
  void Add(int* value) const;
  void Add(uint64_t* value) const;
  void Add(std::optional<uint64_t>* value) const;
  void Add(double* value) const;
  void Add(std::chrono::milliseconds* value) const;
  void Add(std::string* value) const;
  void Add(Strictness* value) const;
  template <HasWords Enum>
  void Add(Enum* value) const {
    AddWords(WordsOf(*value), static_cast<size_t>(*value),
             [value](size_t word) { *value = static_cast<Enum>(word); });
  }
  void Add(std::vector<std::string>* value) const;
  // AddKey() and AddRemote() add options for these.
  void Add(Secret* /*value*/) const {}
  void Add(std::vector<HttpHeader>* /*value*/) const {}
  // AddDequantize() does for these.
  void Add(std::vector<LoraAdapter>* /*value*/) const {}
  void Add(Rules* /*value*/) const {}

 private:
  void AddWords(std::span<const std::string_view> words, size_t now,
                std::function<void(size_t)> set) const;
  // Adds an option. `take` converts its text to the value, or refuses it.
  CLI::Option* AddText(std::function<void(const std::string&)> take,
                       const std::string& value_name,
                       const std::string& now) const;
  // Returns the meaning as a sentence, with the default if `now` is not empty.
  std::string About(const std::string& now) const;
  [[noreturn]] void Refuse(const std::string& expected,
                           const std::string& found) const;
  uint64_t NumberOf(const std::string& text) const;
  uint64_t SizeOf(const std::string& text) const;

  CLI::App& app_;
  std::string name_;
  std::string_view meaning_;
  const Option& option_;
};

// Adds an option for each field of `object` that has a flag, except for the
// names in `without`.
template <class Struct>
void AddFields(CLI::App& app, Struct* object,
               std::initializer_list<std::string_view> without = {}) {
  ForEachField(*object, [&](const auto& field, auto& value) {
    if (field.option.flag == "-") return;
    if (std::ranges::find(without, field.name) != without.end()) return;
    FieldOption(app, field.name, field.meaning, field.option).Add(&value);
  });
}

}  // namespace haulway::cli
