#include "pickling/object_path.h"

#include <fmt/format.h>

#include <cstdint>
#include <string_view>

namespace haulway::python {

namespace {

constexpr size_t kMostOfAKey = 64;

std::string_view TextOf(PyObject* text) {
  Py_ssize_t size = 0;
  const char* data = PyUnicode_AsUTF8AndSize(text, &size);
  if (data == nullptr) {
    PyErr_Clear();
    return "?";
  }
  return {data, static_cast<size_t>(size)};
}

std::string Cut(std::string_view text) {
  if (text.size() <= kMostOfAKey) return std::string(text);
  size_t end = kMostOfAKey;
  while (end > 0 && (static_cast<uint8_t>(text[end]) & 0xC0) == 0x80) --end;
  return std::string(text.substr(0, end)) + "...";
}

std::string ShowKey(PyObject* key) {
  if (PyUnicode_CheckExact(key) && PyUnicode_IsIdentifier(key) == 1) {
    return fmt::format(".{}", Cut(TextOf(key)));
  }
  PyObject* shown = PyObject_ASCII(key);
  if (shown == nullptr) {
    PyErr_Clear();
    return "[?]";
  }
  const std::string text = Cut(TextOf(shown));
  Py_DECREF(shown);
  return fmt::format("[{}]", text);
}

}  // namespace

std::string ObjectPath::Show() const {
  std::string path = "object";
  for (const Step& step : steps_) {
    path += step.key != nullptr ? ShowKey(step.key)
                                : fmt::format("[{}]", step.index);
  }
  return path;
}

}  // namespace haulway::python
