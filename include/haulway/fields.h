// Tables of fields: each member of an options or statistics struct is described
// once, in a table beside the struct. The Python package, JSON, the command
// line, the documentation and sums of statistics are made from these tables.

#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>

#include "haulway/status.h"

namespace haulway {

enum class IoMode : uint8_t;  // See source.h.

// How to combine a field when the statistics of two calls are added.
enum class Adding : uint8_t {
  kKeep,     // The sum keeps its own value.
  kSum,      // The values are added.
  kLargest,  // The larger value; for flags, whether any is set.
};

template <class Struct>
struct Field {
  std::string_view name;
  std::variant<bool Struct::*, int Struct::*, uint64_t Struct::*,
               double Struct::*, std::string Struct::*, IoMode Struct::*>
      member;
  std::string_view meaning;  // One phrase, without a full stop.
  Adding adding = Adding::kKeep;
};

// Calls visit(field, value) for each field in the table of `object`, in the
// table's order. FieldsOf() is declared beside each struct that has a table.
template <class Struct, class Visit>
void ForEachField(Struct& object, const Visit& visit) {
  for (const auto& field : FieldsOf(object)) {
    std::visit([&](auto member) { visit(field, object.*member); },
               field.member);
  }
}

// Adds the fields of `more` to those of `*total`, as the table says.
template <class Struct>
void AddUp(const Struct& more, Struct* total) {
  ForEachField(more, [&](const Field<Struct>& field, const auto& value) {
    using Value = std::remove_cvref_t<decltype(value)>;
    Value& sum = total->*std::get<Value Struct::*>(field.member);
    if (field.adding == Adding::kLargest) sum = std::max(sum, value);
    if constexpr (std::is_arithmetic_v<Value> && !std::is_same_v<Value, bool>) {
      if (field.adding == Adding::kSum) sum += value;
    }
  });
}

}  // namespace haulway
