// Functions of rules in Python.

#include <Python.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "base/fields.h"
#include "base/gil.h"
#include "base/path_text.h"
#include "haulway/dtype.h"
#include "haulway/rules.h"

namespace nb = nanobind;

namespace haulway::python {

namespace {

// Returns (dtype, shape, bytes), for _reading/rules.py.
nb::tuple RowOf(const RuleTensor& tensor) {
  nb::list shape;
  for (const int64_t size : tensor.shape) shape.append(size);
  PyObject* const bytes = PyByteArray_FromStringAndSize(
      reinterpret_cast<const char*>(tensor.bytes.data()),
      static_cast<Py_ssize_t>(tensor.bytes.size()));
  if (bytes == nullptr) throw nb::python_error();
  return nb::make_tuple(NameOf(Name(tensor.dtype)), nb::tuple(shape),
                        nb::steal(bytes));
}

Result<RuleTensor> TensorOf(nb::handle row) {
  RuleTensor made;
  made.dtype = *DTypeFromName(nb::cast<std::string>(row[0]));
  for (nb::handle size : nb::borrow<nb::tuple>(row[1])) {
    made.shape.push_back(nb::cast<int64_t>(size));
  }
  Py_buffer view;
  const nb::object bytes = row[2];
  if (PyObject_GetBuffer(bytes.ptr(), &view, PyBUF_SIMPLE) != 0) {
    throw nb::python_error();
  }
  auto copy = AllocateBuffer(static_cast<uint64_t>(view.len));
  if (copy.ok()) {
    std::ranges::copy(
        std::span(static_cast<const std::byte*>(view.buf), copy->size()),
        copy->mutable_bytes().begin());
  }
  PyBuffer_Release(&view);
  HAULWAY_TRY(copy.status());
  made.bytes = *std::move(copy);
  return made;
}

// Returns where in the user's program a function raised, or "".
std::string PlaceOf(const nb::python_error& raised) {
  if (!raised.traceback().is_valid()) return "";
  try {
    return nb::cast<std::string>(nb::module_::import_("haulway._reading.rules")
                                     .attr("place_of")(raised.traceback()));
  } catch (nb::python_error&) {
    return "";  // A name that is no Unicode.
  }
}

Result<std::vector<RuleTensor>> CallFunction(PyObject* function,
                                             std::vector<RuleTensor> sources) {
  const GilHeld gil;
  if (!gil) return Status(Code::kCancelled, "Python is ending");
  try {
    nb::list rows;
    for (const RuleTensor& source : sources) rows.append(RowOf(source));
    sources.clear();
    const nb::object call =
        nb::module_::import_("haulway._reading.rules").attr("call");
    std::vector<RuleTensor> made;
    for (nb::handle row : call(nb::handle(function), rows)) {
      HAULWAY_ASSIGN(made.emplace_back(), TensorOf(row));
    }
    return made;
  } catch (nb::python_error& raised) {
    Status status =
        StatusOf(raised, "the function of the rule", Code::kInvalidArgument);
    const std::string place = PlaceOf(raised);
    return place.empty() ? status : std::move(status).In(place);
  }
}

}  // namespace

void SetFieldValue(nb::handle value, Rules* to) {
  to->name = PathBytes(nb::cast<nb::str>(value[0]));
  SetFieldValue(value[1], &to->json);
  for (nb::handle function : nb::borrow<nb::tuple>(value[2])) {
    to->functions.push_back(
        [kept = HeldAnywhere(function)](std::vector<RuleTensor> sources) {
          return CallFunction(kept.get(), std::move(sources));
        });
  }
}

}  // namespace haulway::python
