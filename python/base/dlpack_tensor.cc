#include "base/dlpack_tensor.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>

#include "base/dlpack.h"
#include "base/errors.h"

namespace nb = nanobind;

namespace haulway::python {

namespace {

struct DlpackTensor {
  Buffer bytes;  // First to last element.
  DlDataType dtype;
  std::vector<int64_t> shape;
  std::vector<int64_t> strides;
};

// A tensor in a consumer's hands, and the memory that it keeps alive.
template <class Managed>
struct Exported {
  Managed managed = {};
  DlpackTensor tensor;
};

template <class Managed>
nb::object MakeCapsule(const DlpackTensor& tensor, uint64_t flags) {
  auto exported = std::make_unique<Exported<Managed>>();
  exported->tensor = tensor;
  DlpackTensor& kept = exported->tensor;
  exported->managed.tensor = {
      .data = const_cast<std::byte*>(kept.bytes.data()),
      .device = {kDlCpu, 0},
      .ndim = static_cast<int32_t>(kept.shape.size()),
      .dtype = kept.dtype,
      .shape = kept.shape.data(),
      .strides = kept.strides.data(),
      .byte_offset = 0,
  };
  if constexpr (requires { exported->managed.version; }) {
    exported->managed.version = {1, 0};
    exported->managed.flags = flags;
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

nb::object Export(const DlpackTensor& self, nb::object /*stream*/,
                  nb::object max_version,
                  std::optional<std::pair<int, int>> device,
                  std::optional<bool> copy) {
  if (device.has_value() && *device != std::pair(static_cast<int>(kDlCpu), 0)) {
    throw nb::buffer_error(
        "the memory is the CPU's: expected dl_device (1, 0)");
  }
  DlpackTensor tensor = self;
  uint64_t flags = tensor.bytes.writable() ? 0 : kDlReadOnly;
  if (copy == true) {
    tensor.bytes = Unwrap(AllocateBuffer(self.bytes.size()));
    std::ranges::copy(self.bytes.bytes(), tensor.bytes.mutable_bytes().begin());
    flags = kDlIsCopied;
  }
  if (!max_version.is_none() && nb::cast<int>(max_version[0]) >= 1) {
    return MakeCapsule<DlManagedTensorVersioned>(tensor, flags);
  }
  // DLPack before 1.0 has no read-only flag.
  if ((flags & kDlReadOnly) != 0) {
    throw nb::buffer_error(
        "the memory is read-only: expected max_version (1, 0) or later, or "
        "copy=True");
  }
  return MakeCapsule<DlManagedTensor>(tensor, flags);
}

// Returns (first byte, byte count) of the range that the elements span; nullopt
// if it ends past `size`.
std::optional<std::pair<uint64_t, uint64_t>> RangeOf(
    uint64_t size, uint64_t item, const std::vector<int64_t>& shape,
    const std::vector<int64_t>& strides, int64_t offset) {
  if (shape.size() != strides.size() || offset < 0) return std::nullopt;
  if (std::ranges::find(shape, 0) != shape.end()) return std::pair(0, 0);
  __int128 last = offset;
  for (size_t i = 0; i < shape.size(); ++i) {
    if (shape[i] < 0 || strides[i] < 0) return std::nullopt;
    last += static_cast<__int128>(shape[i] - 1) * strides[i];
    if (last > static_cast<__int128>(size)) return std::nullopt;
  }
  const __int128 end = (last + 1) * item;
  if (end > static_cast<__int128>(size)) return std::nullopt;
  const auto begin = static_cast<uint64_t>(offset) * item;
  return std::pair(begin, static_cast<uint64_t>(end) - begin);
}

}  // namespace

void BindDlpackTensor(nb::module_& module) {
  nb::class_<DlpackTensor>(module, "DlpackTensor")
      .def("__dlpack_device__",
           [](const DlpackTensor&) { return nb::make_tuple(kDlCpu, 0); })
      .def("__dlpack__", &Export, nb::kw_only(),
           nb::arg("stream").none() = nb::none(),
           nb::arg("max_version").none() = nb::none(),
           nb::arg("dl_device").none() = nb::none(),
           nb::arg("copy").none() = nb::none());
}

nb::object MakeDlpackTensor(const Buffer& bytes, DType dtype,
                            std::vector<int64_t> shape,
                            std::vector<int64_t> strides, int64_t offset) {
  const auto type = DlTypeOf(dtype);
  if (!type.has_value()) throw nb::buffer_error("DLPack has no such dtype");
  const auto range =
      RangeOf(bytes.size(), ItemBytes(dtype), shape, strides, offset);
  if (!range.has_value()) {
    throw nb::value_error("the tensor reaches past its memory");
  }
  return nb::cast(DlpackTensor{bytes.Slice(range->first, range->second), *type,
                               std::move(shape), std::move(strides)});
}

}  // namespace haulway::python
