// Bindings for writing the container of torch 1.5 and before.

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <string>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "base/progress.h"
#include "bind/bindings.h"
#include "bind/writing.h"
#include "haulway/archive.h"
#include "pickling/pickle_object.h"

namespace nb = nanobind;

namespace haulway::python {

void BindLegacy(nb::module_& module) {
  module.def(
      "write_legacy",
      [](nb::object target, const PickledObject& object, int protocol,
         nb::dict writing, nb::object progress) {
        std::vector<LegacyStorage> storages;
        storages.reserve(object.storages.size());
        for (const PickledStorage& storage : object.storages) {
          storages.push_back({std::to_string(storage.legacy_key),
                              storage.nbytes, storage.item_bytes,
                              storage.data});
        }
        const auto layout =
            Unwrap(LayOutLegacy(object.pickle, std::move(storages), protocol));
        return WriteFile(std::move(target), *layout,
                         EngineOf(std::move(writing)), std::move(progress));
      },
      nb::arg("target"), nb::arg("object"), nb::arg("protocol"),
      nb::arg("writing"), nb::arg("progress").none());
}

}  // namespace haulway::python
