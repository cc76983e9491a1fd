#include "base/fields.h"

#include <fmt/format.h>

#include "base/errors.h"

namespace nb = nanobind;

namespace haulway::python {

void RaiseWrongValue(std::string_view name, std::string_view meaning,
                     nb::handle value, bool is_secret) {
  PyErr_Clear();
  const auto shown = nb::cast<std::string>(
      is_secret ? value.type().attr("__name__") : nb::repr(value));
  Raise(Status(Code::kInvalidArgument,
               fmt::format("{}: expected {}, found {}", name, meaning, shown)));
}

void RaiseNoOption(std::string_view name) {
  throw nb::type_error(fmt::format("no option is named {}", name).c_str());
}

}  // namespace haulway::python
