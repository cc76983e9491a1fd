// The parts of torch that the pickling of tensors needs, looked up once per
// pickle.

#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace haulway::python {

// How tensors of a dtype are saved.
struct DTypeRow {
  nanobind::object dtype;
  nanobind::object storage_class;  // torch.FloatStorage
  nanobind::object stored_as;      // The storage's dtype.
  uint64_t item_bytes = 1;         // Size of the storage's items.
  uint64_t element_bytes = 1;      // Element size of the tensor.
  bool is_plain = false;           // If false, use __reduce_ex__().
  bool is_v3 = false;              // _rebuild_tensor_v3, on untyped bytes.
  bool is_complex = false;
};

// The properties of a dense tensor on the CPU.
struct TensorFacts {
  const DTypeRow* dtype = nullptr;
  nanobind::object storage;
  int64_t offset = 0;  // In elements.
  std::vector<int64_t> shape;
  std::vector<int64_t> strides;  // In elements.
  bool requires_grad = false;
};

enum class TensorKind { kPlain, kOther, kFailed };
enum class StorageKind : uint32_t { kNone, kTyped, kUntyped };

class TorchNames {
 public:
  // If torch is not imported, finds nothing; then no object is a tensor.
  TorchNames();

  // Returns false with an error set if torch lacks a needed name.
  bool ok() const { return ok_; }
  bool is_loaded() const { return tensor_.is_valid(); }
  bool IsTensor(const PyTypeObject* type) const {
    return Is(type, tensor_) || Is(type, parameter_);
  }
  bool IsParameter(const PyTypeObject* type) const {
    return Is(type, parameter_);
  }
  // Returns the storage kind of the object's type; kNone with an error set on
  // failure.
  StorageKind StorageKindOf(PyObject* object) const;

  // Reads the properties of a tensor, reusing the memory of `facts`. Returns
  // kOther for every tensor that __reduce_ex__() treats specially: sparse,
  // quantized, nested, meta, conjugate or negative, not on the CPU, with
  // attributes or hooks.
  TensorKind Read(PyObject* tensor, TensorFacts* facts);

  const nanobind::object& torch() const { return torch_; }
  const nanobind::object& uint8() const { return uint8_; }
  const nanobind::object& rebuild_v2() const { return rebuild_v2_; }
  const nanobind::object& rebuild_v3() const { return rebuild_v3_; }
  const nanobind::object& rebuild_parameter() const {
    return rebuild_parameter_;
  }
  const nanobind::object& location_tag() const { return location_tag_; }
  // "cpu" if all storages on the CPU have this tag; else invalid.
  const nanobind::object& cpu_tag() const { return cpu_tag_; }

  // Function that returns (untyped storage, class name, element count) of a
  // typed storage.
  const nanobind::object& parts_of_storage() const { return parts_of_storage_; }
  // Function that returns the device of a storage without data, or None.
  const nanobind::object& fake_device() const { return fake_device_; }

  // Reads an untyped storage. Returns false with an error set on failure.
  bool StorageAddress(PyObject* storage, uint64_t* identity, uint64_t* nbytes,
                      const std::byte** data) const;

 private:
  static bool Is(const PyTypeObject* type, const nanobind::object& known) {
    return reinterpret_cast<const PyObject*>(type) == known.ptr();
  }
  const DTypeRow* RowOf(PyObject* dtype);
  bool Load();

  bool ok_ = true;
  nanobind::object torch_, tensor_, parameter_;
  // Attributes of torch.Tensor and torch.UntypedStorage.
  nanobind::object is_cpu_, dtype_, shape_, stride_, storage_offset_,
      requires_grad_, is_neg_, is_conj_, untyped_storage_, backward_hooks_;
  nanobind::object untyped_class_, typed_class_, is_storage_;
  nanobind::object nbytes_, data_ptr_, identity_;
  nanobind::object rebuild_v2_, rebuild_v3_, rebuild_parameter_, uint8_;
  nanobind::object location_tag_, cpu_tag_;
  nanobind::object storage_names_, dtypes_of_bytes_;
  nanobind::object parts_of_storage_, fake_device_;
  std::vector<DTypeRow> rows_;
  const DTypeRow* last_row_ = nullptr;
};

}  // namespace haulway::python
