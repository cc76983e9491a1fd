// Paths between Python and the library: the bytes of a name, which need not be
// UTF-8, are a str with surrogates in Python.

#pragma once

#include <nanobind/nanobind.h>

#include <string>
#include <string_view>

namespace haulway::python {

// A path as Python has it.
inline nanobind::object PathText(std::string_view path) {
  return nanobind::steal(PyUnicode_DecodeFSDefaultAndSize(
      path.data(), static_cast<Py_ssize_t>(path.size())));
}

// A path as the system has it.
inline std::string PathBytes(const nanobind::str& path) {
  const nanobind::object bytes =
      nanobind::steal(PyUnicode_EncodeFSDefault(path.ptr()));
  if (!bytes.is_valid()) throw nanobind::python_error();
  return {PyBytes_AS_STRING(bytes.ptr()),
          static_cast<size_t>(PyBytes_GET_SIZE(bytes.ptr()))};
}

}  // namespace haulway::python
