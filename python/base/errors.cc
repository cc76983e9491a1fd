#include "base/errors.h"

#include <string>

namespace nb = nanobind;

namespace haulway::python {

void Raise(const Status& status, std::string_view remedy) {
  // A Python call of ours failed and set the exception.
  if (PyErr_Occurred() != nullptr) throw nb::python_error();
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
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.ptr())),
                  error.ptr());
  throw nb::python_error();
}

}  // namespace haulway::python
