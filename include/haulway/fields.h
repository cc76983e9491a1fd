// Fields by name: a member of a struct of statistics or options is said once,
// in a table beside the struct, and Python, JSON, the command line, the
// documents and sums are made from that.

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

enum class IoMode : uint8_t;  // Of source.h.

// What becomes of a field where two are made one: what two calls did.
enum class Adding : uint8_t {
  kKeep,     // Of the sum it is what it was before.
  kSum,      // Numbers are added.
  kLargest,  // The larger one, and of flags whether any is set.
};

template <class Struct>
struct Field {
  std::string_view name;
  std::variant<bool Struct::*, int Struct::*, uint64_t Struct::*,
               double Struct::*, std::string Struct::*, IoMode Struct::*>
      member;
  std::string_view meaning;  // Without a full stop.
  Adding adding = Adding::kKeep;
};

// Calls visit(field, value) for each field of `object` that is in its table,
// in the table's order. FieldsOf() is declared beside each struct that has one.
template <class Struct, class Visit>
void ForEachField(Struct& object, const Visit& visit) {
  for (const auto& field : FieldsOf(object)) {
    std::visit([&](auto member) { visit(field, object.*member); },
               field.member);
  }
}

// Adds the fields of `more` to those of `*total`, each as its table says.
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
