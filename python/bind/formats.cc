// Bindings of the tables of formats and dtypes.

#include <nanobind/nanobind.h>
#include <nanobind/stl/string_view.h>

#include <string_view>

#include "bind/bindings.h"
#include "haulway/dtype.h"
#include "haulway/format.h"
#include "haulway/safetensors.h"
#include "haulway/scaled.h"

namespace nb = nanobind;

namespace haulway::python {

namespace {

std::string_view Name(DTypeKind kind) {
  switch (kind) {
    case DTypeKind::kFloat:
      return "float";
    case DTypeKind::kComplex:
      return "complex";
    case DTypeKind::kInt:
      return "int";
    case DTypeKind::kUInt:
      return "uint";
    case DTypeKind::kBool:
      return "bool";
    case DTypeKind::kQuantized:
      return "quantized";
    case DTypeKind::kPacked:
      return "packed";
    case DTypeKind::kBits:
      return "bits";
    case DTypeKind::kBlocks:
      return "blocks";
    case DTypeKind::kBytes:
      return "bytes";
  }
  return {};
}

std::string_view Name(InNumpy in_numpy) {
  return in_numpy == InNumpy::kItself     ? "itself"
         : in_numpy == InNumpy::kMlDtypes ? "ml_dtypes"
                                          : "";
}

}  // namespace

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
          "no_data", [](const FormatEntry& self) { return self.can.no_data; },
          "Whether tensors may lack data in them: torch's meta tensors.")
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
  // Rows (name; torch's name; kind; NumPy support: "itself", "ml_dtypes" or "";
  // NumPy dtype that holds the bits; bytes per item; elements per item; name in
  // safetensors files; whether DLPack has a code).
  module.def("dtypes", [] {
    nb::list rows;
    for (const DTypeInfo& info : AllDTypes()) {
      rows.append(nb::make_tuple(
          info.name, info.torch_name, Name(info.kind), Name(info.in_numpy),
          Describe(NumpyBits(info.dtype)).torch_name, info.item_bytes,
          info.item_elements, info.safetensors_name, info.dlpack_code >= 0));
    }
    return rows;
  });
  // Rows (how the weight's name ends, how its scales' name does, whether the
  // weight must be coded).
  module.def("scaled_layouts", [] {
    nb::list rows;
    for (const ScaledLayout& layout : ScaledLayouts()) {
      rows.append(
          nb::make_tuple(layout.weight, layout.scales, layout.is_coded));
    }
    return rows;
  });
  // Names in the order of the safetensors package.
  module.def("safetensors_dtypes", [] {
    nb::list names;
    for (const DType dtype : kSafetensorsDTypes) {
      names.append(Describe(dtype).safetensors_name);
    }
    return names;
  });
}

}  // namespace haulway::python
