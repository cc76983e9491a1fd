// The table of formats.

#include <nanobind/nanobind.h>
#include <nanobind/stl/string_view.h>

#include <string_view>

#include "bind/bindings.h"
#include "haulway/format.h"

namespace nb = nanobind;

namespace haulway::python {

void BindFormats(nb::module_& module) {
  nb::class_<FormatEntry>(module, "Format",
                          "A format: a row of formats(). Threads may share it; "
                          "its attributes raise nothing.")
      .def_ro("name", &FormatEntry::name,
              "The name by which calls take it, \"torch\".")
      .def_prop_ro(
          "suffixes",
          [](const FormatEntry& self) {
            nb::list suffixes;
            for (const std::string_view suffix : self.suffixes) {
              suffixes.append(suffix);
            }
            return nb::tuple(suffixes);
          },
          "How names of such files end; the first is the usual one.")
      .def_prop_ro(
          "encrypts", [](const FormatEntry& self) { return self.can.encrypt; },
          "Whether files may be encrypted, and take a key.")
      .def_prop_ro(
          "digests", [](const FormatEntry& self) { return self.can.digests; },
          "Whether files hold checksums of their tensors.")
      .def_prop_ro(
          "nested", [](const FormatEntry& self) { return self.can.nested; },
          "Whether they hold an object, and not only tensors by name.")
      .def_prop_ro(
          "views", [](const FormatEntry& self) { return self.can.views; },
          "Whether tensors may share memory in them.")
      .def_prop_ro(
          "values", [](const FormatEntry& self) { return self.can.values; },
          "Whether metadata may be numbers, flags and lists.")
      .def("__repr__", [](const FormatEntry& self) {
        return nb::str("Format({!r})").attr("format")(self.name);
      });
  module.def(
      "formats",
      [] {
        nb::list formats;
        for (const FormatEntry& format : Formats()) {
          formats.append(nb::cast(&format, nb::rv_policy::reference));
        }
        return nb::tuple(formats);
      },
      "All formats that can be read, in the order in which they are tried. "
      "Raises nothing.");
  module.def(
      "format_by_suffix",
      [](const nb::bytes& path) {
        return FormatBySuffix({path.c_str(), path.size()});
      },
      nb::rv_policy::reference);
}

}  // namespace haulway::python
