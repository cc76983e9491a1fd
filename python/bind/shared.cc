// Bindings of checkpoints in shared memory.

#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "base/memory.h"
#include "base/progress.h"
#include "bind/bindings.h"
#include "bind/loading.h"
#include "bind/tree_builder.h"
#include "haulway/load.h"
#include "haulway/select.h"

namespace nb = nanobind;

namespace haulway::python {

namespace {

using SharedPtr = std::shared_ptr<SharedCheckpoint>;

// Marks the storages writable: torch has no read-only memory and must not copy.
// A write to them ends the process with SIGSEGV.
std::vector<Buffer> AsWritable(const std::vector<Buffer>& buffers) {
  std::vector<Buffer> writable;
  writable.reserve(buffers.size());
  for (const Buffer& bytes : buffers) {
    writable.emplace_back(
        bytes.owner(),
        std::span(const_cast<std::byte*>(bytes.data()), bytes.size()), true);
  }
  return writable;
}

SharedPtr LoadIt(std::shared_ptr<ByteSource> source, const NameFilter* wanted,
                 OpenOptions open, LoadOptions load, nb::object progress) {
  SharedLoadOptions options;
  options.open = std::move(open);
  options.load = std::move(load);
  std::vector<std::string> names;
  if (wanted != nullptr) {
    options.wanted = [&](std::string_view name) {
      names.emplace_back(name);
      return wanted->Matches(name);
    };
  }
  Progress told(std::move(progress));
  told.Attach(&options.load);
  auto loaded = std::const_pointer_cast<SharedCheckpoint>(
      told.Run([&] { return LoadShared(std::move(source), options); }));
  if (wanted != nullptr) {
    const std::vector<std::string_view> views(names.begin(), names.end());
    Check(wanted->CheckUsed(views));
  }
  return loaded;
}

}  // namespace

void BindShared(nb::module_& module) {
  nb::class_<SharedCheckpoint>(module, "SharedCheckpoint")
      .def_prop_ro("handle",
                   [](const SharedCheckpoint& self) { return self.handle(); })
      .def_prop_ro("nbytes", &SharedCheckpoint::mapped_bytes)
      .def_prop_ro(
          "checkpoint",
          [](const SharedCheckpoint& self) {
            return std::const_pointer_cast<Checkpoint>(self.checkpoint());
          })
      .def_prop_ro(
          "stats",
          [](const SharedCheckpoint& self) { return FieldsDict(self.stats()); })
      // The numbers of the selected entries, or None for all.
      .def_prop_ro("entries",
                   [](const SharedCheckpoint& self) -> nb::object {
                     if (!self.entries().has_value()) return nb::none();
                     nb::list entries;
                     for (const uint32_t entry : *self.entries()) {
                       entries.append(entry);
                     }
                     return entries;
                   })
      // Returns a Memory for each storage.
      .def(
          "memories",
          [](const SharedCheckpoint& self, bool writable) {
            nb::list memories;
            const std::vector<Buffer> buffers =
                writable ? AsWritable(self.buffers()) : self.buffers();
            for (const Buffer& bytes : buffers) {
              memories.append(MakeMemory(bytes));
            }
            return memories;
          },
          nb::arg("writable"))
      // Builds the object with torch tensors.
      .def(
          "build",
          [](const SharedCheckpoint& self, nb::object factory,
             nb::object from_dlpack) {
            TreeBuilder::Options options;
            options.buffers = AsWritable(self.buffers());
            options.from_dlpack = std::move(from_dlpack);
            options.bases = nb::none();
            TreeBuilder builder(*self.checkpoint(), std::move(factory),
                                std::move(options));
            return builder.BuildWhole();
          },
          nb::arg("factory"), nb::arg("from_dlpack"));

  module.def(
      "load_shared",
      [](std::shared_ptr<ByteSource> source, const NameFilter* wanted,
         nb::dict opening, nb::dict loading, nb::object progress) {
        return LoadIt(std::move(source), wanted,
                      OpenOptionsOf(std::move(opening)),
                      LoadOptionsOf(std::move(loading)), std::move(progress));
      },
      nb::arg("source"), nb::arg("wanted").none(), nb::arg("opening"),
      nb::arg("loading"), nb::arg("progress").none());
  module.def("attach_shared", [](const std::string& handle, nb::dict opening) {
    const OpenOptions options = OpenOptionsOf(std::move(opening));
    return std::const_pointer_cast<SharedCheckpoint>(
        Unwrap(WithoutGil([&] { return AttachShared(handle, options); })));
  });
}

}  // namespace haulway::python
