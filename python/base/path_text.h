// Converts paths between Python and the library. File names need not be UTF-8;
// Python represents other bytes as surrogates in a str.

#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <string>
#include <string_view>

namespace haulway::python {

// Converts bytes of the file system to a Python str.
inline nanobind::object PathText(std::string_view path) {
  return nanobind::steal(PyUnicode_DecodeFSDefaultAndSize(
      path.data(), static_cast<Py_ssize_t>(path.size())));
}

// Converts a Python str to bytes of the file system.
inline std::string PathBytes(const nanobind::str& path) {
  const nanobind::object bytes =
      nanobind::steal(PyUnicode_EncodeFSDefault(path.ptr()));
  if (!bytes.is_valid()) throw nanobind::python_error();
  return {PyBytes_AS_STRING(bytes.ptr()),
          static_cast<size_t>(PyBytes_GET_SIZE(bytes.ptr()))};
}

}  // namespace haulway::python
