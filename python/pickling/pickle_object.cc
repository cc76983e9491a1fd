#include "pickling/pickle_object.h"

#include <fmt/format.h>
#include <nanobind/stl/string.h>

#include <utility>
#include <vector>

#include "base/errors.h"
#include "haulway/buffer.h"
#include "pickling/object_walker.h"

namespace nb = nanobind;

namespace haulway::python {

PickledObject PickleObject(nb::handle object,
                           const PickleObjectOptions& options) {
  const auto walk = [&](ObjectWalker& walker) {
    if (!walker.ok() || !walker.Save(object.ptr())) throw nb::python_error();
  };
  ObjectWalker first(options);
  walk(first);
  if (!options.compact) return first.Finish();
  // Which bytes of a storage are used is known only after the whole walk.
  first.FinishSurvey();
  ObjectWalker second(options, &first);
  walk(second);
  return second.Finish();
}

void BindPickleObject(nb::module_& module) {
  nb::class_<PickledObject>(module, "PickledObject")
      .def_prop_ro("pickle",
                   [](const PickledObject& self) {
                     return nb::bytes(self.pickle.data(), self.pickle.size());
                   })
      // Tuples (key, owner, address, nbytes, location).
      .def_prop_ro("storages",
                   [](const PickledObject& self) {
                     nb::list rows;
                     for (size_t i = 0; i < self.storages.size(); ++i) {
                       const PickledStorage& storage = self.storages[i];
                       rows.append(nb::make_tuple(
                           nb::str(fmt::format("{}", i).c_str()), storage.owner,
                           reinterpret_cast<uintptr_t>(storage.data),
                           storage.nbytes, storage.location));
                     }
                     return rows;
                   })
      // Pairs (number, owner) of the storages whose bytes are not in this
      // process's memory.
      .def("elsewhere",
           [](const PickledObject& self) {
             nb::list rows;
             for (size_t i = 0; i < self.storages.size(); ++i) {
               const PickledStorage& storage = self.storages[i];
               if (storage.data == nullptr && storage.nbytes > 0) {
                 rows.append(nb::make_tuple(i, storage.owner));
               }
             }
             return rows;
           })
      // Sets the address of a copy of such a storage; `owner` keeps it alive.
      .def("bring",
           [](PickledObject& self, size_t number, nb::object owner,
              uintptr_t address) {
             PickledStorage& storage = self.storages.at(number);
             storage.owner = std::move(owner);
             storage.data = reinterpret_cast<const std::byte*>(address);
           })
      // Replaces all bytes by holes.
      .def("leave_out",
           [](PickledObject& self) {
             for (PickledStorage& storage : self.storages) {
               storage.data = nullptr;
             }
           })
      // Copies all bytes, so that the object may change meanwhile.
      .def("snapshot", [](PickledObject& self, int threads) {
        std::vector<std::span<const std::byte>> parts;
        parts.reserve(self.storages.size());
        for (const PickledStorage& storage : self.storages) {
          parts.emplace_back(storage.data,
                             storage.data == nullptr ? 0 : storage.nbytes);
        }
        self.copies =
            Unwrap(WithoutGil([&] { return CopyToBuffers(parts, threads); }));
        for (size_t i = 0; i < self.storages.size(); ++i) {
          PickledStorage& storage = self.storages[i];
          if (storage.data != nullptr) storage.data = self.copies[i].data();
          storage.owner = nb::none();
        }
      });

  module.def(
      "pickle_object",
      [](nb::handle object, nb::iterable also_data, bool arrays_as_tensors,
         bool compact, uint32_t max_depth, int protocol, bool legacy) {
        PickleObjectOptions options;
        for (const nb::handle name : also_data) {
          options.also_data.insert(nb::cast<std::string>(name));
        }
        options.arrays_as_tensors = arrays_as_tensors;
        options.compact = compact;
        options.protocol = protocol;
        options.legacy = legacy;
        options.max_depth = max_depth;
        return PickleObject(object, options);
      },
      nb::arg("object").none(), nb::arg("also_data") = nb::tuple(),
      nb::arg("arrays_as_tensors") = false, nb::arg("compact") = false,
      nb::arg("max_depth") = PickleObjectOptions().max_depth,
      nb::arg("protocol") = PickleObjectOptions().protocol,
      nb::arg("legacy") = false);
}

}  // namespace haulway::python
