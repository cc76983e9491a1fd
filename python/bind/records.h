// Accepts records of archives from Python.

#pragma once

#include <fmt/format.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/fields.h"
#include "bind/writing.h"
#include "haulway/archive.h"
#include "pickling/pickle_object.h"

namespace haulway::python {

// Records from Python: pairs of a name and either the bytes to write or the
// number of bytes to leave free. A PickledObject stands for its storages.
struct Records {
  explicit Records(nanobind::list list) {
    borrowed.reserve(list.size());
    records.reserve(list.size());
    static constexpr std::byte kNothing{};
    for (nanobind::handle item : list) {
      if (nanobind::isinstance<PickledObject>(item)) {
        const auto& object = nanobind::cast<const PickledObject&>(item);
        for (const PickledStorage& storage : object.storages) {
          // A null address leaves a hole, so an empty storage needs another
          // one.
          const bool empty = storage.nbytes == 0;
          records.push_back({fmt::format("data/{}", next_storage++),
                             storage.nbytes, empty ? &kNothing : storage.data});
        }
        continue;
      }
      const nanobind::tuple pair = nanobind::cast<nanobind::tuple>(item);
      std::string name = Utf8Of(pair[0]);
      if (PyLong_Check(nanobind::handle(pair[1]).ptr())) {
        records.push_back(
            {std::move(name), nanobind::cast<uint64_t>(pair[1]), nullptr});
        continue;
      }
      const auto bytes = borrowed.emplace_back(pair[1]).bytes();
      records.push_back({std::move(name), bytes.size(),
                         bytes.empty() ? &kNothing : bytes.data()});
    }
  }
  std::vector<Borrowed> borrowed;
  std::vector<ArchiveRecord> records;
  uint64_t next_storage = 0;
};

}  // namespace haulway::python
