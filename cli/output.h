// Prints tables, JSON, sizes, and names from files, which are escaped.

#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "haulway/compare.h"
#include "haulway/convert.h"
#include "haulway/fields.h"
#include "haulway/format.h"
#include "haulway/index.h"
#include "haulway/source.h"
#include "haulway/verify.h"

namespace haulway::cli {

// Replaces control bytes and bytes that are not UTF-8 by \xNN.
std::string Escape(std::string_view text);
// Returns a JSON string with its quotes. A byte that is not UTF-8 becomes
// \u00NN.
std::string JsonText(std::string_view text);
// Returns two lower-case hexadecimal digits per byte.
std::string Hex(std::span<const std::byte> bytes);
// Returns "12.5 MiB", or the exact number.
std::string Size(uint64_t bytes, bool exact);
// Returns "1 tensor", "2 tensors".
std::string Counted(uint64_t count, std::string_view what);
std::string Shape(std::span<const int64_t> shape);
// Returns the value as JSON, or for people, with only the first items of an
// array.
std::string FactText(const FactValue& value, bool json);

// A Json builds one JSON object on one line.
class Json {
 public:
  Json& Begin(char bracket);  // '{' or '['
  Json& End(char bracket);
  Json& Key(std::string_view key);
  Json& Text(std::string_view value);
  Json& Number(uint64_t value) { return Raw(std::to_string(value)); }
  Json& Raw(std::string_view token);
  Json& Numbers(std::span<const int64_t> values);
  // Adds a value in its own spelling: missing values and numbers that are not
  // finite are null, structs with a table of fields are objects, enumerators
  // are their names, and bytes are hexadecimal.
  template <class T>
  Json& Value(const T& value, Spelling spelling = Spelling::kText);
  // Adds the fields of a struct that has a table of them; see haulway/fields.h.
  template <class Struct>
  Json& Fields(const Struct& object) {
    ForEachField(object, [&](const auto& field, const auto& value) {
      Key(field.name).Value(value, field.spelling);
    });
    return *this;
  }
  // Prints most of what there is if that is much, so that it need not be kept.
  void Flush();
  void Print() const;
  const std::string& text() const { return out_; }

 private:
  void Comma();
  Json& Float(double value);
  Json& Opcodes(const OpcodeCounts& opcodes);
  Json& Spelled(std::string_view value, Spelling spelling);
  std::string out_;
};

template <class T>
Json& Json::Value(const T& value, Spelling spelling) {
  if constexpr (std::is_same_v<T, bool>) {
    return Raw(value ? "true" : "false");
  } else if constexpr (std::is_integral_v<T>) {
    return Raw(std::to_string(value));
  } else if constexpr (std::is_floating_point_v<T>) {
    return Float(value);
  } else if constexpr (std::is_same_v<T, Code>) {
    return Text(CodeName(value));
  } else if constexpr (std::is_enum_v<T>) {
    return Text(Name(value));
  } else if constexpr (HasFields<T>) {
    return Begin('{').Fields(value).End('}');
  } else if constexpr (std::is_convertible_v<const T&, std::string_view>) {
    return Spelled(value, spelling);
  } else if constexpr (requires { value.has_value(); }) {
    return value.has_value() ? Value(*value, spelling) : Raw("null");
  } else if constexpr (std::is_same_v<T, OpcodeCounts>) {
    return Opcodes(value);
  } else if constexpr (std::is_convertible_v<const T&,
                                             std::span<const std::byte>>) {
    return Text(Hex(value));
  } else {
    Begin('[');
    for (const auto& item : value) Value(item, spelling);
    return End(']');
  }
}

// What a verdict says: nothing is wrong, nothing is known, something is wrong.
enum class Finds : uint8_t { kNothing, kUnknown, kFault };

// Returns a verdict in green, yellow or red if standard output is a terminal
// with colours and NO_COLOR is not set; otherwise as it is.
std::string Coloured(std::string_view word, Finds finds);
// Returns "OK    " or "FAILED".
std::string OkOrFailed(bool ok);

// Prints each finding on an indented line.
void PrintFindings(const std::vector<Finding>& findings);

// A Table aligns the cells of its rows. Rows must have at most one cell per
// column.
//
// A column has a widest width, so that one long cell does not widen all rows.
// What is longer is cut on a terminal, and whole elsewhere.
class Table {
 public:
  // `align` has '<' or '>' per column, or '.' for a last one that is whole on a
  // terminal, too.
  explicit Table(std::string_view align);
  // Keeps a row for Print().
  void Add(const std::vector<std::string>& row);
  void Print() const;

  // For very many rows, which are not kept: first Measure() each, then
  // PrintRow() each.
  void Measure(const std::vector<std::string>& row);
  void PrintRow(const std::vector<std::string>& row) const;

 private:
  void PrintCells(std::span<const std::string_view> cells) const;

  std::string align_;
  std::vector<size_t> width_;
  size_t terminal_;  // Its width; 0: standard output is none.
  // All cells, row by row, and the bytes of each.
  std::string text_;
  std::vector<uint32_t> sizes_;
};

}  // namespace haulway::cli
