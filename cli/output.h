// Printing: tables, JSON, sizes, and names from files made harmless.

#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "haulway/fields.h"
#include "haulway/index.h"
#include "haulway/source.h"
#include "haulway/verify.h"

namespace haulway::cli {

// Control bytes and bytes that are not UTF-8's become \xNN.
std::string Escape(std::string_view text);
// A JSON string with its quotes; a byte that is not UTF-8's is \u00NN.
std::string JsonText(std::string_view text);
// Two lower-case hexadecimal digits per byte.
std::string Hex(std::span<const std::byte> bytes);
// "12.5 MiB", or the exact number.
std::string Size(uint64_t bytes, bool exact);
// "1 tensor", "2 tensors".
std::string Counted(uint64_t count, std::string_view what);
std::string Shape(std::span<const int64_t> shape);
// As JSON, or for people: the first items of an array then.
std::string FactText(const FactValue& value, bool json);

// Builds one JSON object on one line.
class Json {
 public:
  Json& Begin(char bracket);  // '{' or '['
  Json& End(char bracket);
  Json& Key(std::string_view key);
  Json& Text(std::string_view value);
  Json& Number(uint64_t value) { return Raw(std::to_string(value)); }
  Json& Raw(std::string_view token);
  Json& Numbers(std::span<const int64_t> values);
  // A value in its own spelling: a number that is not finite is null.
  Json& Value(bool value) { return Raw(value ? "true" : "false"); }
  Json& Value(int value) { return Raw(std::to_string(value)); }
  Json& Value(uint64_t value) { return Number(value); }
  Json& Value(double value);
  Json& Value(const std::string& value) { return Text(value); }
  Json& Value(IoMode value) { return Text(Name(value)); }
  // An array of what has names, and why each is there.
  template <class Row>
  Json& Reasons(const std::vector<Row>& rows) {
    Begin('[');
    for (const Row& row : rows) {
      Begin('{').Key("name").Text(row.name).Key("why").Text(row.why).End('}');
    }
    return End(']');
  }
  // The fields of a struct that has a table of them, see haulway/fields.h.
  template <class Struct>
  Json& Fields(const Struct& object) {
    ForEachField(object, [&](const auto& field, const auto& value) {
      Key(field.name).Value(value);
    });
    return *this;
  }
  Json& Byte(std::optional<uint64_t> value);
  Json& Findings(const std::vector<Finding>& findings);
  void Print() const;
  const std::string& text() const { return out_; }

 private:
  void Comma();
  std::string out_;
};

// One indented line each.
void PrintFindings(const std::vector<Finding>& findings);

class Table {
 public:
  // `align` holds '<' or '>' per column.
  explicit Table(std::string_view align) : align_(align) {}
  void Add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  void Print() const;

 private:
  std::string align_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace haulway::cli
