// GPUs: loading into their memory, and handing it on by DLPack.

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/dlpack.h"
#include "base/errors.h"
#include "base/progress.h"
#include "bind/bindings.h"
#include "bind/loading.h"
#include "haulway/buffer.h"
#include "haulway/load.h"

namespace nb = nanobind;

namespace haulway::python {

namespace {

// Memory of a GPU, as one dimension of bytes.
struct DeviceMemory {
  DeviceBuffer bytes;
};

template <class Managed>
struct Exported {
  Managed managed = {};
  DeviceBuffer bytes;
  int64_t size = 0;
};

// A consumer renames the capsule and then deletes the tensor itself.
template <class Managed>
void DeleteCapsule(PyObject* capsule) {
  if (PyCapsule_IsValid(capsule, Managed::kCapsule) == 0) return;
  auto* managed =
      static_cast<Managed*>(PyCapsule_GetPointer(capsule, Managed::kCapsule));
  managed->deleter(managed);
}

template <class Managed>
nb::object MakeCapsule(const DeviceBuffer& bytes) {
  auto exported = std::make_unique<Exported<Managed>>();
  exported->bytes = bytes;
  exported->size = static_cast<int64_t>(bytes.size);
  exported->managed.tensor = {
      .data = reinterpret_cast<void*>(bytes.address),
      .device = {kDlCuda, bytes.ordinal},
      .ndim = 1,
      .dtype = {kDlUInt, 8, 1},
      .shape = &exported->size,
      .strides = nullptr,
      .byte_offset = 0,
  };
  if constexpr (requires { exported->managed.version; }) {
    exported->managed.version = {1, 0};
    // Consumers of 1.0 may not take a null for dense.
    static int64_t one = 1;
    exported->managed.tensor.strides = &one;
  }
  exported->managed.manager = exported.get();
  exported->managed.deleter = [](Managed* managed) {
    delete static_cast<Exported<Managed>*>(managed->manager);
  };
  PyObject* capsule = PyCapsule_New(&exported->managed, Managed::kCapsule,
                                    DeleteCapsule<Managed>);
  if (capsule == nullptr) throw nb::python_error();
  (void)exported.release();
  return nb::steal(capsule);
}

nb::object Export(const DeviceMemory& self, nb::object /*stream*/,
                  nb::object max_version,
                  std::optional<std::pair<int, int>> device,
                  std::optional<bool> copy) {
  const bool is_elsewhere =
      device.has_value() &&
      *device != std::pair(static_cast<int>(kDlCuda), self.bytes.ordinal);
  if (is_elsewhere || copy == true) {
    throw nb::buffer_error(
        "the memory is given as it is: on its device, "
        "without a copy");
  }
  // Nothing is under way on any stream, so there is nothing to wait for.
  if (!max_version.is_none() && nb::cast<int>(max_version[0]) >= 1) {
    return MakeCapsule<DlManagedTensorVersioned>(self.bytes);
  }
  return MakeCapsule<DlManagedTensor>(self.bytes);
}

}  // namespace

void BindDevice(nb::module_& module) {
  nb::class_<CudaDevice>(module, "CudaDevice")
      .def_prop_ro("ordinal", &CudaDevice::ordinal);
  module.def(
      "open_cuda",
      [](int ordinal, const std::string& driver) {
        return std::const_pointer_cast<CudaDevice>(Unwrap(
            WithoutGil([&] { return CudaDevice::Open(ordinal, driver); })));
      },
      nb::arg("ordinal"), nb::arg("driver") = "libcuda.so.1");

  nb::class_<DeviceMemory>(module, "DeviceMemory")
      .def_prop_ro("nbytes",
                   [](const DeviceMemory& self) { return self.bytes.size; })
      .def("__dlpack_device__",
           [](const DeviceMemory& self) {
             return nb::make_tuple(kDlCuda, self.bytes.ordinal);
           })
      .def("__dlpack__", &Export, nb::kw_only(),
           nb::arg("stream").none() = nb::none(),
           nb::arg("max_version").none() = nb::none(),
           nb::arg("dl_device").none() = nb::none(),
           nb::arg("copy").none() = nb::none());
  // Several storages at once: (list of DeviceMemory, stats).
  module.def(
      "load_to_device",
      [](std::shared_ptr<Checkpoint> checkpoint,
         const std::vector<uint32_t>& rows, std::shared_ptr<CudaDevice> device,
         nb::dict loading, nb::object progress) {
        LoadOptions options = LoadOptionsOf(std::move(loading));
        Progress told(std::move(progress));
        told.Attach(&options);
        DeviceStorages loaded = told.Run(
            [&] { return LoadToDevice(*checkpoint, rows, *device, options); },
            Signals::kWait);
        nb::list memories;
        for (DeviceBuffer& bytes : loaded.buffers) {
          memories.append(nb::cast(DeviceMemory{std::move(bytes)}));
        }
        return nb::make_tuple(memories, FieldsDict(loaded.stats));
      },
      nb::arg("checkpoint"), nb::arg("rows"), nb::arg("device"),
      nb::arg("loading"), nb::arg("progress").none());
}

}  // namespace haulway::python
