#include "base/errors.h"

#include <fmt/format.h>
#include <nanobind/stl/string.h>

#include <memory>
#include <string>

namespace nb = nanobind;

namespace haulway::python {

void Raise(const Status& status, std::string_view remedy) {
  // A Python call of ours failed and set the exception.
  if (PyErr_Occurred() != nullptr) throw nb::python_error();
  const std::shared_ptr<void> kept = status.cause();  // By StatusOf().
  const nb::handle cause(static_cast<PyObject*>(kept.get()));
  if (cause.is_valid() && !nb::isinstance(cause, PyExc_Exception)) {
    // The interrupt that StatusOf() set is delivered here.
    if (PyErr_CheckSignals() != 0) PyErr_Clear();
    PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(cause.ptr())),
                    cause.ptr());
    throw nb::python_error();
  }
  const std::string_view code = CodeName(status.code());
  std::string message(status.message());
  if (!remedy.empty()) message.append("; ").append(remedy);
  nb::object byte = nb::none();
  if (status.byte().has_value()) byte = nb::int_(*status.byte());
  const nb::object error =
      nb::module_::import_("haulway._errors")
          .attr("make_error")(nb::str(code.data(), code.size()),
                              nb::str(message.data(), message.size()), byte,
                              status.os_error());
  if (cause.is_valid()) {
    PyException_SetCause(error.ptr(), nb::borrow(cause).release().ptr());
  }
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.ptr())),
                  error.ptr());
  throw nb::python_error();
}

Status StatusOf(nb::python_error& raised, std::string_view what, Code code) {
  if (raised.matches(PyExc_ConnectionError)) code = Code::kUnavailable;
  if (raised.matches(PyExc_TimeoutError)) code = Code::kTimeout;
  if (raised.matches(PyExc_EOFError)) code = Code::kTruncated;
  if (!raised.matches(PyExc_Exception)) code = Code::kCancelled;
  if (raised.matches(PyExc_KeyboardInterrupt) && IsMainThread()) {
    // So it is not lost if the engine can do without what failed.
    PyErr_SetInterrupt();
  }
  std::string text = nb::cast<std::string>(raised.type().attr("__name__"));
  const nb::object value = nb::borrow(raised.value());
  PyObject* const words = PyObject_Str(value.ptr());
  if (words == nullptr) {
    PyErr_Clear();
  } else {
    const nb::object held = nb::steal(words);
    Py_ssize_t length = 0;
    const char* const utf8 = PyUnicode_AsUTF8AndSize(words, &length);
    if (utf8 == nullptr) {
      PyErr_Clear();
    } else if (length > 0) {
      text += ": ";
      text.append(utf8, static_cast<size_t>(length));
    }
  }
  if (raised.traceback().is_valid()) {
    PyException_SetTraceback(value.ptr(), raised.traceback().ptr());
  }
  return Status(code, fmt::format("{} raised {}", what, text))
      .Because(HeldAnywhere(value));
}

}  // namespace haulway::python
