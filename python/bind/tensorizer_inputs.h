// Converts Python arguments for writing tensorizer files.

#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <string>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "base/fields.h"
#include "bind/writing.h"
#include "haulway/tensorizer.h"

namespace haulway::python {

namespace nb = nanobind;

inline TensorizerStep StepOf(nb::handle step) {
  if (PyLong_Check(step.ptr())) {
    return {true, nb::cast<uint64_t>(step), ""};
  }
  return {false, 0, Utf8Of(step)};
}

// Tensors as (path, type, module index, dtype, shape, data). The data is an
// argument of Borrowed, or None for a meta tensor.
struct TensorizerInputs {
  explicit TensorizerInputs(nb::list list) {
    borrowed.reserve(list.size());
    tensors.reserve(list.size());
    for (nb::handle item : list) {
      const nb::tuple fields = nb::cast<nb::tuple>(item);
      TensorizerInput& tensor = tensors.emplace_back();
      for (nb::handle step : nb::cast<nb::tuple>(fields[0])) {
        tensor.path.push_back(StepOf(step));
      }
      tensor.type = static_cast<TensorizerType>(nb::cast<int>(fields[1]));
      tensor.module_index = nb::cast<uint16_t>(fields[2]);
      const std::string name = Utf8Of(fields[3]);
      const auto dtype = DTypeFromName(name);
      if (!dtype.has_value()) {
        Raise(Status(Code::kInvalidArgument, "no such dtype").In(name));
      }
      tensor.dtype = *dtype;
      uint64_t bytes = ItemBytes(*dtype);
      for (nb::handle dim : nb::cast<nb::tuple>(fields[4])) {
        tensor.shape.push_back(nb::cast<uint64_t>(dim));
        bytes *= tensor.shape.back();
      }
      tensor.meta = nb::handle(fields[5]).is_none();
      if (tensor.meta) continue;
      const auto data = borrowed.emplace_back(fields[5]).bytes();
      if (data.size() != bytes) {
        Raise(Status(Code::kInvalidArgument,
                     "data is not as long as the shape has it"));
      }
      tensor.bytes = data.data();
    }
  }
  std::vector<Borrowed> borrowed;
  std::vector<TensorizerInput> tensors;
};

// Converts a dict from str to str, or None.
inline std::vector<std::pair<std::string, std::string>> MetadataOf(
    nb::handle object) {
  std::vector<std::pair<std::string, std::string>> pairs;
  if (object.is_none()) return pairs;
  for (const auto& [key, value] : nb::cast<nb::dict>(object)) {
    if (!PyUnicode_Check(key.ptr()) || !PyUnicode_Check(value.ptr())) {
      Raise(Status(Code::kInvalidArgument, "metadata: expected str by str"));
    }
    pairs.emplace_back(Utf8Of(key), Utf8Of(value));
  }
  return pairs;
}

}  // namespace haulway::python
