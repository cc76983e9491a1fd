// Accepts tensors to write from Python.

#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/errors.h"
#include "base/fields.h"
#include "bind/writing.h"
#include "haulway/dtype.h"
#include "haulway/save.h"

namespace haulway::python {

// Dense tensors from Python and the objects that keep them alive: tuples (name,
// dtype, shape, bytes). For many tensors pass an iterator, not a list: with
// 100,000 tuples alive, Python's collector visits every object about a dozen
// times.
struct DenseTensors {
  explicit DenseTensors(nanobind::iterable rows) {
    for (nanobind::handle item : rows) {
      const nanobind::tuple parts = nanobind::cast<nanobind::tuple>(item);
      const auto dtype_name = nanobind::cast<std::string>(parts[1]);
      const std::optional<DType> dtype = DTypeFromName(dtype_name);
      if (!dtype.has_value()) {
        Raise(Status(Code::kInvalidArgument, "no dtype " + dtype_name));
      }
      TensorToWrite& tensor = tensors.tensors.emplace_back();
      tensor.name = Utf8Of(parts[0]);
      tensor.dtype = *dtype;
      for (nanobind::handle size : nanobind::cast<nanobind::tuple>(parts[2])) {
        tensor.shape.push_back(nanobind::cast<int64_t>(size));
      }
      const auto bytes = borrowed.emplace_back(parts[3]).bytes();
      tensor.bytes = {.length = bytes.size(), .bytes = bytes.data()};
    }
  }

  // Adds metadata: None, or a dict from key to text or to a tuple for FactOf().
  void Note(nanobind::object metadata) {
    if (metadata.is_none()) return;
    auto& noted = tensors.metadata.emplace();
    for (const auto& [key, value] : nanobind::cast<nanobind::dict>(metadata)) {
      if (nanobind::isinstance<nanobind::tuple>(value)) {
        tensors.values.push_back(FactOf(key, value));
      } else {
        noted.emplace_back(Utf8Of(key), Utf8Of(value));
      }
    }
  }

  std::vector<Borrowed> borrowed;
  TensorsToWrite tensors;
};

}  // namespace haulway::python
