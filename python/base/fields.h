// Structs of statistics and options in Python: dicts by the names of their
// tables, see haulway/fields.h.

#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <string>
#include <string_view>

#include "haulway/fields.h"
#include "haulway/source.h"
#include "haulway/status.h"

namespace haulway::python {

inline nanobind::str NameOf(std::string_view name) {
  return nanobind::str(name.data(), name.size());
}

// "auto", "mmap", ...; raises InvalidArgumentError for any other.
IoMode IoModeOf(std::string_view io);

inline nanobind::object FieldValue(IoMode value) { return NameOf(Name(value)); }
template <class Value>
nanobind::object FieldValue(const Value& value) {
  return nanobind::cast(value);
}

inline void SetFieldValue(nanobind::handle value, IoMode* to) {
  *to = IoModeOf(nanobind::cast<std::string>(value));
}
inline void SetFieldValue(nanobind::handle value, bool* to) {
  *to = PyObject_IsTrue(value.ptr()) == 1;
}
template <class Value>
void SetFieldValue(nanobind::handle value, Value* to) {
  *to = nanobind::cast<Value>(value);
}

// What the table of `object` holds, by name.
template <class Struct>
nanobind::dict FieldsDict(const Struct& object) {
  nanobind::dict dict;
  ForEachField(object, [&](const auto& field, const auto& value) {
    dict[NameOf(field.name)] = FieldValue(value);
  });
  return dict;
}

// Sets the field of that name; false if there is none.
template <class Struct>
bool SetField(std::string_view name, nanobind::handle value, Struct* object) {
  bool found = false;
  ForEachField(*object, [&](const auto& field, auto& member) {
    if (field.name != name) return;
    SetFieldValue(value, &member);
    found = true;
  });
  return found;
}

// The fields of a table that are added up where two are made one.
template <class Struct>
nanobind::tuple SummedFields() {
  nanobind::list names;
  for (const Field<Struct>& field : FieldsOf(Struct())) {
    if (field.adding == Adding::kSum) names.append(NameOf(field.name));
  }
  return nanobind::tuple(names);
}

}  // namespace haulway::python
