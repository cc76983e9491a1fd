// Tables of fields: each member of an options, statistics or report struct is
// described once, in a table beside the struct. The Python package, JSON, the
// command line, the documentation and sums of statistics are made from these
// tables.

#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>
#include <type_traits>
#include <utility>

#include "haulway/status.h"

namespace haulway {

// How to combine a field when the statistics of two calls are added.
enum class Adding : uint8_t {
  kKeep,     // The sum keeps its own value.
  kSum,      // The values are added.
  kLargest,  // The larger value; for flags, whether any is set.
};

// What a text in a report is.
enum class Spelling : uint8_t {
  kText,
  kPath,        // A path, or a URL, which is shown without credentials.
  kTextOrNone,  // An empty text stands for none.
};

// What a number in an option counts.
enum class Quantity : uint8_t {
  kItems,
  kBytes,
  kAlignment,  // Bytes: a power of two.
};

// An Option says of a field what its type does not.
struct Option {
  // The calls of the Python package that take the option, separated by spaces;
  // empty: every call that takes the struct.
  std::string_view calls = {};
  // The formats that have the option, separated by spaces; empty: all.
  std::string_view formats = {};
  Quantity unit = Quantity::kItems;
  Spelling spelling = Spelling::kText;  // For texts.
  bool secret = false;                  // Messages never show the value.
  // The range of a number.
  uint64_t least = 0;
  uint64_t most = uint64_t{1} << 62;
  // Whether the configuration and the environment can set the option too.
  bool configured = true;
  // Whether the Python package offers the option as it is.
  bool in_python = true;
  // The option on the command line; empty: "--" and the name. "-" if the
  // command line has none, or spells the option in its own way.
  std::string_view flag = {};
  // If set, the option is a flag on the command line that sets false, or the
  // last word; this is the flag's meaning.
  std::string_view off_meaning = {};
  // What the help calls a value: "FILE".
  std::string_view value_name = {};
};

template <class Struct, class Member>
struct Field {
  constexpr Field(std::string_view name, Member Struct::*member,
                  std::string_view meaning, Adding adding = Adding::kKeep)
      : name(name), member(member), meaning(meaning), adding(adding) {}
  constexpr Field(std::string_view name, Member Struct::*member,
                  std::string_view meaning, Spelling spelling)
      : name(name), member(member), meaning(meaning), spelling(spelling) {}
  constexpr Field(std::string_view name, Member Struct::*member,
                  std::string_view meaning, Option option)
      : name(name), member(member), meaning(meaning), option(option) {}

  std::string_view name;
  // A member, or a const function without parameters.
  Member Struct::*member;
  std::string_view meaning;  // One phrase, without a full stop.
  Adding adding = Adding::kKeep;
  Spelling spelling = Spelling::kText;
  Option option = {};
};

// The fields of a member that is a struct with a table, or such a struct or
// nothing: they count as fields of the struct that has the member.
template <class Struct, class Member>
struct FieldsOfMember {
  constexpr explicit FieldsOfMember(Member Struct::*member) : member(member) {}
  Member Struct::*member;
};

namespace fields_internal {

// Design: one base for each row. std::tuple has the same rows, but takes the
// compiler up to a second for the tables of one header.
template <size_t kIndex, class Row>
struct Place {
  Row row;
};

template <class Indices, class... Row>
struct Places;

template <size_t... kIndex, class... Row>
struct Places<std::index_sequence<kIndex...>, Row...> : Place<kIndex, Row>... {
  constexpr explicit Places(Row... row) : Place<kIndex, Row>{row}... {}

  template <class Use>
  constexpr decltype(auto) Apply(const Use& use) const {
    return use(static_cast<const Place<kIndex, Row>&>(*this).row...);
  }
};

}  // namespace fields_internal

// The rows of a struct's table: FieldTable{Field(...), Field(...)}.
// Apply(use) calls use(row, row, ...) with all rows and returns its result.
template <class... Row>
struct FieldTable
    : fields_internal::Places<std::index_sequence_for<Row...>, Row...> {
  using FieldTable::Places::Places;
};

template <class... Row>
FieldTable(Row...) -> FieldTable<Row...>;

// A struct with a table: FieldsOf() is declared beside the struct, and returns
// a FieldTable of Field and FieldsOfMember.
template <class Struct>
concept HasFields = requires(const Struct& object) { FieldsOf(object); };

// An enumeration whose values have names: WordsOf() is declared beside the
// enumeration, and returns the names in the order of the values.
template <class Enum>
concept HasWords = requires(Enum value) { WordsOf(value); };

// Returns the name of a value.
template <HasWords Enum>
constexpr std::string_view WordOf(Enum value) {
  return WordsOf(value)[static_cast<size_t>(value)];
}

// Returns the value with this name.
template <HasWords Enum>
constexpr std::optional<Enum> FromWord(std::string_view name) {
  const auto words = WordsOf(Enum());
  for (size_t i = 0; i < words.size(); ++i) {
    if (words[i] == name) return static_cast<Enum>(i);
  }
  return std::nullopt;
}

template <class Struct, class Visit>
void ForEachField(Struct& object, const Visit& visit);

namespace fields_internal {

template <class Of, class Member, class Struct, class Visit>
void VisitField(const Field<Of, Member>& field, Struct& object,
                const Visit& visit) {
  visit(field, std::invoke(field.member, object));
}

template <class Of, class Member, class Struct, class Visit>
void VisitField(const FieldsOfMember<Of, Member>& part, Struct& object,
                const Visit& visit) {
  ForEachField(object.*part.member, visit);
}

template <class Of, class Inner, class Struct, class Visit>
void VisitField(const FieldsOfMember<Of, std::optional<Inner>>& part,
                Struct& object, const Visit& visit) {
  const std::optional<Inner>& inner = object.*part.member;
  const Inner values = inner.value_or(Inner());
  ForEachField(values, [&](const auto& field, const auto& value) {
    using Value = std::remove_cvref_t<decltype(value)>;
    visit(field, inner.has_value() ? std::optional<Value>(value)
                                   : std::optional<Value>());
  });
}

template <class Of, class Member, class Struct>
void AddField(const Field<Of, Member>& field, const Struct& more,
              Struct* total) {
  if constexpr (std::is_arithmetic_v<Member>) {
    Member& sum = total->*field.member;
    const Member value = more.*field.member;
    if (field.adding == Adding::kLargest) sum = std::max(sum, value);
    if constexpr (!std::is_same_v<Member, bool>) {
      if (field.adding == Adding::kSum) sum += value;
    }
  }
}

}  // namespace fields_internal

// Calls visit(field, value) for each field in the table of `object`, in the
// table's order. If a member of FieldsOfMember is nothing, its values are
// empty.
template <class Struct, class Visit>
void ForEachField(Struct& object, const Visit& visit) {
  FieldsOf(object).Apply([&](const auto&... field) {
    (fields_internal::VisitField(field, object, visit), ...);
  });
}

// Adds the fields of `more` to those of `*total`, as the table says.
template <class Struct>
void AddUp(const Struct& more, Struct* total) {
  FieldsOf(more).Apply([&](const auto&... field) {
    (fields_internal::AddField(field, more, total), ...);
  });
}

}  // namespace haulway
