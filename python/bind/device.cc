// Bindings for loading into GPU memory.

#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "base/progress.h"
#include "bind/bindings.h"
#include "bind/loading.h"
#include "haulway/buffer.h"
#include "haulway/load.h"

namespace nb = nanobind;

namespace haulway::python {

namespace {

// Returns the destination of each storage on the device. The caller keeps the
// memory alive.
std::vector<DeviceBuffer> TargetsAt(const Checkpoint& checkpoint,
                                    const std::vector<uint32_t>& rows,
                                    const std::vector<uint64_t>& addresses,
                                    int ordinal) {
  std::vector<DeviceBuffer> targets;
  targets.reserve(rows.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    targets.push_back({nullptr, addresses.at(i),
                       checkpoint.index().storages.at(rows[i]).nbytes,
                       ordinal});
  }
  return targets;
}

}  // namespace

void BindDevice(nb::module_& module) {
  nb::class_<CudaDevice>(module, "CudaDevice");
  module.def(
      "open_cuda",
      [](int ordinal, const std::string& driver) {
        return std::const_pointer_cast<CudaDevice>(Unwrap(
            WithoutGil([&] { return CudaDevice::Open(ordinal, driver); })));
      },
      nb::arg("ordinal"), nb::arg("driver") = "libcuda.so.1");

  // Loads storages to addresses on the device; each address has room for its
  // storage. Returns statistics.
  module.def(
      "load_to_device",
      [](std::shared_ptr<Checkpoint> checkpoint,
         const std::vector<uint32_t>& rows,
         const std::vector<uint64_t>& addresses,
         std::shared_ptr<CudaDevice> device, nb::dict loading,
         nb::object progress) {
        LoadOptions options = LoadOptionsOf(std::move(loading));
        const auto targets =
            TargetsAt(*checkpoint, rows, addresses, device->ordinal());
        Progress told(std::move(progress));
        told.Attach(&options);
        return FieldsDict(told.Run(
            [&] {
              return LoadToDevice(*checkpoint, rows, targets, *device, options);
            },
            Signals::kWait));
      },
      nb::arg("checkpoint"), nb::arg("rows"), nb::arg("addresses"),
      nb::arg("device"), nb::arg("loading"), nb::arg("progress").none());
}

}  // namespace haulway::python
