// Converts structs of statistics and options to and from Python dicts, keyed by
// the field names of their tables; see haulway/fields.h.

#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <vector>

#include "base/path_text.h"
#include "haulway/compare.h"
#include "haulway/convert.h"
#include "haulway/fields.h"
#include "haulway/format.h"
#include "haulway/options.h"
#include "haulway/pickle.h"
#include "haulway/source.h"
#include "haulway/status.h"
#include "haulway/verify.h"

namespace haulway::python {

inline nanobind::str NameOf(std::string_view name) {
  return nanobind::str(name.data(), name.size());
}

// Converts a name from a file to str. Bytes that are not UTF-8 become \\xNN.
inline nanobind::object TextOf(std::string_view text) {
  return nanobind::steal(PyUnicode_DecodeUTF8(
      text.data(), static_cast<Py_ssize_t>(text.size()), "backslashreplace"));
}

// Returns the text as UTF-8. Throws UnicodeEncodeError for lone surrogates.
inline std::string Utf8Of(nanobind::handle text) {
  Py_ssize_t size = 0;
  const char* utf8 = PyUnicode_AsUTF8AndSize(text.ptr(), &size);
  if (utf8 == nullptr) throw nanobind::python_error();
  return std::string(utf8, static_cast<size_t>(size));
}

[[noreturn]] void RaiseWrongValue(std::string_view name,
                                  std::string_view meaning,
                                  nanobind::handle value, bool is_secret);
[[noreturn]] void RaiseNoOption(std::string_view name);

template <class Struct>
nanobind::dict FieldsDict(const Struct& object);

// Converts the value of a field: an absent value to None, a struct with a table
// to a dict, an enumerator to its name, bytes to hexadecimal digits, sizes to a
// tuple, and other sequences to lists.
template <class Value>
nanobind::object FieldValue(const Value& value,
                            Spelling spelling = Spelling::kText) {
  if constexpr (std::is_arithmetic_v<Value>) {
    return nanobind::cast(value);
  } else if constexpr (std::is_same_v<Value, Code>) {
    return TextOf(CodeName(value));
  } else if constexpr (std::is_enum_v<Value>) {
    return TextOf(Name(value));
  } else if constexpr (HasFields<Value>) {
    return FieldsDict(value);
  } else if constexpr (std::is_convertible_v<const Value&, std::string_view>) {
    const std::string_view text = value;
    if (spelling == Spelling::kPath) return PathText(text);
    if (spelling == Spelling::kTextOrNone && text.empty()) {
      return nanobind::none();
    }
    return TextOf(text);
  } else if constexpr (requires { value.has_value(); }) {
    if (!value.has_value()) return nanobind::none();
    return FieldValue(*value, spelling);
  } else if constexpr (std::is_same_v<Value, OpcodeCounts>) {
    nanobind::dict counts;
    for (const auto& [opcode, count] : value) {
      counts[TextOf(PickleOpcodeName(opcode))] = count;
    }
    return counts;
  } else if constexpr (std::is_convertible_v<const Value&,
                                             std::span<const std::byte>>) {
    const std::span<const std::byte> bytes = value;
    return nanobind::bytes(bytes.data(), bytes.size()).attr("hex")();
  } else {
    nanobind::list list;
    for (const auto& item : value) list.append(FieldValue(item, spelling));
    if constexpr (std::is_same_v<Value, std::vector<int64_t>>) {
      return nanobind::tuple(list);
    }
    return list;
  }
}

// Converts the value of an option. Calls check user input first (_options.py);
// a value that cannot be converted has bypassed that check.
inline void SetFieldValue(nanobind::handle value, bool* to) {
  *to = PyObject_IsTrue(value.ptr()) == 1;
}
inline void SetFieldValue(nanobind::handle value, Strictness* to) {
  *to = PyObject_IsTrue(value.ptr()) == 1 ? Strictness::kLenient
                                          : Strictness::kStrict;
}
inline void SetFieldValue(nanobind::handle value,
                          std::chrono::milliseconds* to) {
  *to = std::chrono::milliseconds(
      static_cast<int64_t>(nanobind::cast<double>(value) * 1000));
}
inline void SetFieldValue(nanobind::handle value, Secret* to) {
  const auto bytes = nanobind::cast<nanobind::bytes>(value);
  // Empty bytes are rejected: a caller that wants no secret passes None.
  if (bytes.size() == 0) throw nanobind::cast_error();
  *to = Secret(std::string_view(bytes.c_str(), bytes.size()));
}
inline void SetFieldValue(nanobind::handle value, std::string* to) {
  if (PyBytes_Check(value.ptr())) {
    const auto bytes = nanobind::borrow<nanobind::bytes>(value);
    to->assign(bytes.c_str(), bytes.size());
    return;
  }
  *to = nanobind::cast<std::string>(value);
}
inline void SetFieldValue(nanobind::handle value,
                          std::vector<std::string>* to) {
  to->clear();
  for (nanobind::handle text : value) SetFieldValue(text, &to->emplace_back());
}
inline void SetFieldValue(nanobind::handle value,
                          std::vector<LoraAdapter>* to) {
  to->clear();
  for (nanobind::handle one : value) {
    to->push_back({PathBytes(nanobind::cast<nanobind::str>(one[0])),
                   nanobind::cast<double>(one[1])});
  }
}
// A tuple of a name, JSON, and functions; see _reading/rules.py.
void SetFieldValue(nanobind::handle value, Rules* to);
// A dict from text to text.
template <class Pair>
void SetFieldValue(nanobind::handle value, std::vector<Pair>* to) {
  for (const auto& [key, text] : nanobind::cast<nanobind::dict>(value)) {
    to->push_back({Utf8Of(key), Utf8Of(text)});
  }
}
template <HasWords Enum>
void SetFieldValue(nanobind::handle value, Enum* to) {
  const auto found = FromWord<Enum>(nanobind::cast<std::string>(value));
  if (!found.has_value()) throw nanobind::cast_error();
  *to = *found;
}
template <class Value>
  requires std::is_arithmetic_v<Value>
void SetFieldValue(nanobind::handle value, Value* to) {
  *to = nanobind::cast<Value>(value);
}
template <class Value>
void SetFieldValue(nanobind::handle value, std::optional<Value>* to) {
  SetFieldValue(value, &to->emplace());
}

// Returns the fields of `object` as a dict by name.
template <class Struct>
nanobind::dict FieldsDict(const Struct& object) {
  nanobind::dict dict;
  ForEachField(object, [&](const auto& field, const auto& value) {
    dict[NameOf(field.name)] = FieldValue(value, field.spelling);
  });
  return dict;
}

template <class Struct>
bool SetField(std::string_view name, nanobind::handle value, Struct* object);

namespace fields_internal {

template <class Of, class Member, class Struct>
bool SetPart(const Field<Of, Member>& field, std::string_view name,
             nanobind::handle value, Struct* object) {
  if (field.name != name) return false;
  try {
    SetFieldValue(value, &(object->*field.member));
    return true;
  } catch (const nanobind::cast_error&) {
  } catch (nanobind::python_error& error) {
    if (error.matches(PyExc_UnicodeError)) throw;
  }
  RaiseWrongValue(field.name, field.meaning, value, field.option.secret);
}

template <class Of, class Member, class Struct>
bool SetPart(const FieldsOfMember<Of, Member>& part, std::string_view name,
             nanobind::handle value, Struct* object) {
  return SetField(name, value, &(object->*part.member));
}

}  // namespace fields_internal

// Sets the field called `name`. Returns false if there is none. Raises
// InvalidArgumentError, with the name, if the field cannot have the value.
template <class Struct>
bool SetField(std::string_view name, nanobind::handle value, Struct* object) {
  return FieldsOf(*object).Apply([&](const auto&... part) {
    return (fields_internal::SetPart(part, name, value, object) || ...);
  });
}

// Sets the fields named in the dict, each in every struct that has it. A value
// of None leaves the field as it is. Raises TypeError for a name that no struct
// has.
template <class... Structs>
void SetFields(nanobind::dict named, Structs*... objects) {
  for (const auto& [key, value] : named) {
    if (value.is_none()) continue;
    Py_ssize_t size = 0;
    const char* const utf8 = PyUnicode_AsUTF8AndSize(key.ptr(), &size);
    if (utf8 == nullptr) throw nanobind::python_error();
    const std::string_view name(utf8, static_cast<size_t>(size));
    // Every struct is asked: several can have the field.
    bool found = false;
    ((found = SetField(name, value, objects) || found), ...);
    if (!found) RaiseNoOption(name);
  }
}

// Returns the names of the fields that are added up when two records are
// merged.
template <class Struct>
nanobind::tuple SummedFields() {
  nanobind::list names;
  const Struct object;
  ForEachField(object, [&](const auto& field, const auto&) {
    if (field.adding == Adding::kSum) names.append(NameOf(field.name));
  });
  return nanobind::tuple(names);
}

}  // namespace haulway::python
