// Bindings for selecting tensors by name, by index and by rank.

#include "haulway/select.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "bind/bindings.h"

namespace nb = nanobind;

namespace haulway::python {

namespace {

// Converts a number of an index. A number that does not fit 64 bits becomes the
// nearest that does: both are past any end.
std::optional<int64_t> NumberOf(nb::handle object) {
  if (object.is_none()) return std::nullopt;
  const nb::object number = nb::steal(PyNumber_Index(object.ptr()));
  if (!number.is_valid()) throw nb::python_error();
  int overflow = 0;
  const int64_t value = PyLong_AsLongLongAndOverflow(number.ptr(), &overflow);
  if (overflow > 0) return std::numeric_limits<int64_t>::max();
  if (overflow < 0) return std::numeric_limits<int64_t>::min() + 1;
  return value;
}

IndexItem ItemOf(nb::handle object) {
  using Kind = IndexItem::Kind;
  if (object.is_none()) return {.kind = Kind::kNewAxis};
  if (object.ptr() == Py_Ellipsis) return {.kind = Kind::kEllipsis};
  if (!PySlice_Check(object.ptr())) {
    return {.kind = Kind::kNumber, .start = NumberOf(object)};
  }
  const IndexItem item = {.kind = Kind::kSlice,
                          .start = NumberOf(object.attr("start")),
                          .stop = NumberOf(object.attr("stop")),
                          .step = NumberOf(object.attr("step"))};
  if (item.step == 0) throw nb::value_error("slice step cannot be zero");
  return item;
}

nb::tuple IntsOf(const std::vector<int64_t>& numbers) {
  return nb::tuple(nb::cast(numbers));
}

// Returns (slices, shape, strides, whether the result is larger than the data
// it is read from).
nb::tuple SelectParts(const nb::tuple& index, const std::vector<int64_t>& shape,
                      const std::vector<int64_t>& strides) {
  std::vector<IndexItem> items;
  for (const nb::handle item : index) items.push_back(ItemOf(item));
  const auto selected = Select(items, shape, strides);
  if (!selected.ok()) {
    const std::string message(selected.status().message());
    throw nb::index_error(message.c_str());
  }
  nb::list slices;
  for (const DimSlice& slice : selected->slices) {
    slices.append(nb::make_tuple(slice.start, slice.stop, slice.step));
  }
  return nb::make_tuple(slices, IntsOf(selected->shape()),
                        IntsOf(selected->strides()),
                        selected->IsLargerThan(strides));
}

// Returns the slices that select a rank's part, up to the last dimension that
// is cut.
nb::tuple ShardParts(const std::vector<int64_t>& shape, int64_t dim,
                     int64_t rank, int64_t world) {
  const ShardOptions shard = {.rank = rank, .world = world, .dim = dim};
  Check(CheckShard(shard));
  nb::list parts;
  for (const IndexItem& item : ShardIndex(shape, shard)) {
    const nb::object start =
        item.start.has_value() ? nb::int_(*item.start) : nb::object(nb::none());
    const nb::object stop =
        item.stop.has_value() ? nb::int_(*item.stop) : nb::object(nb::none());
    parts.append(nb::slice(start, stop, nb::none()));
  }
  return nb::tuple(parts);
}

}  // namespace

void BindSelect(nb::module_& module) {
  nb::class_<NameFilter>(module, "NameFilter")
      .def(
          "__init__",
          [](NameFilter* self, std::optional<std::vector<std::string>> include,
             std::vector<std::string> exclude, std::string prefix) {
            new (self) NameFilter(Unwrap(NameFilter::Make(
                {std::move(include), std::move(exclude), std::move(prefix)})));
          },
          nb::arg("include").none(), nb::arg("exclude"), nb::arg("prefix"))
      .def("matches", [](const NameFilter& self, std::string_view name) {
        return self.Matches(name);
      });
  // Returns (name, tensor row) of the selected entries.
  module.def(
      "choose", [](const Checkpoint& checkpoint, const NameFilter& filter) {
        Check(filter.CheckUsed({&checkpoint}));
        nb::list chosen;
        for (const Entry& entry : checkpoint.entries()) {
          if (!filter.Matches(entry.name)) continue;
          chosen.append(nb::make_tuple(
              nb::str(entry.name.data(), entry.name.size()), entry.tensor));
        }
        return chosen;
      });
  module.def("select", &SelectParts);
  module.def("shard_index", &ShardParts);
}

}  // namespace haulway::python
