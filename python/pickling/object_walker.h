// The implementation of PickleObject(): walks an object as CPython's pickler
// does.

#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "haulway/pickle.h"
#include "haulway/status.h"
#include "pickling/array_memory.h"
#include "pickling/compact_plan.h"
#include "pickling/object_path.h"
#include "pickling/pickle_object.h"
#include "pickling/torch_names.h"

namespace haulway::python {

// Every method returns false with a Python error set if it fails. Memoized
// objects are kept alive, so that no two objects share an address.
class ObjectWalker {
 public:
  explicit ObjectWalker(const PickleObjectOptions& options)
      : ObjectWalker(options, nullptr) {}
  // Starts the second walk of an object for `compact`. `survey` is the first
  // walk, which recorded how the storages are used; it must outlive this
  // walker.
  ObjectWalker(const PickleObjectOptions& options, ObjectWalker* survey);
  ~ObjectWalker();
  ObjectWalker(const ObjectWalker&) = delete;
  ObjectWalker& operator=(const ObjectWalker&) = delete;

  // Returns false with an error set if a needed part of torch is missing.
  bool ok() const { return torch_.ok(); }
  // Call after the first walk.
  void FinishSurvey() { plan_.Finish(); }
  bool Save(PyObject* object);
  PickledObject Finish();

 private:
  enum class Outcome { kDone, kFailed, kNotMine };

  // --- object_walker.cc: atoms and containers.
  bool Dispatch(PyObject* object);
  bool SaveInt(PyObject* object);
  bool SaveText(PyObject* object);
  bool SaveBytes(PyObject* object);
  bool SaveByteArray(PyObject* object);
  bool SaveBuffer(PyObject* object);
  bool SaveSet(PyObject* object);
  bool SaveFrozenSet(PyObject* object);
  // Whether the tuple's items appear as steps of the path.
  enum class Steps { kShown, kHidden };
  bool SaveTuple(PyObject* object, Steps steps = Steps::kShown);
  bool SaveList(PyObject* object);
  bool SaveDict(PyObject* object);
  bool SaveKeyAndValue(PyObject* key, PyObject* value);
  template <class SaveItem>
  bool SaveBatches(PyObject* iterator, const SaveItem& save_item,
                   void (PickleWriter::*one)(), void (PickleWriter::*many)());
  bool AppendFrom(PyObject* iterator);
  bool SetItemsFrom(PyObject* iterator);
  void Put(PyObject* object);

  // --- object_reduce.cc: names, and the results of __reduce_ex__().
  bool SaveGlobal(PyObject* object, PyObject* name);
  bool SaveByReduction(PyObject* object);
  // `object` is null if the result is not memoized.
  bool SaveReduction(PyObject* reduction, PyObject* object);
  // Writes the callable and arguments of a reduction, without the opcode that
  // calls it.
  bool SaveCall(PyObject* callable, PyObject* args, PyObject* object);
  bool SaveArguments(PyObject* args);
  bool SaveNew(PyObject* args, PyObject* object);
  bool SaveNewWithKeywords(PyObject* args, PyObject* object);
  // Writes the class of cls.__new__(cls, ...), the first item of `args`.
  bool SaveClassOf(PyObject* args, PyObject* object);
  bool IsData(std::string_view module, std::string_view name) const;

  // --- object_tensors.cc: tensors and storages of torch.
  // Writes a dense tensor on the CPU that has no state except its elements.
  Outcome SaveTensor(PyObject* tensor, bool is_parameter);
  // A global name in the pickle, and the key of its memo entry.
  struct WrittenName {
    PyObject* object = nullptr;  // Null if torch is not imported.
    const char* module = nullptr;
    const char* name = nullptr;
    const void* id = nullptr;
  };
  struct WrittenTensor {
    WrittenName rebuild;
    WrittenName storage_class;
    WrittenName dtype;  // Only for _rebuild_tensor_v3.
    size_t row = 0;     // Row of the storage.
    uint64_t count = 0;
    int64_t offset = 0;
    std::span<const int64_t> shape;
    std::span<const int64_t> strides;
    bool requires_grad = false;
  };
  // If the survey cut the storage of row `surveyed`, sets the tensor's place in
  // its cut, and `*placed`. `copy`, a bool(PickledStorage*), makes a dense copy
  // of the elements. The row counts units, the tensor items.
  template <class Copy>
  bool PlaceInCut(size_t surveyed, uint64_t item_bytes, uint64_t unit_bytes,
                  const Copy& copy, WrittenTensor* tensor, bool* placed);
  static WrittenName Written(const nanobind::object& object) {
    return {object.ptr(), nullptr, nullptr, object.ptr()};
  }
  bool SaveName(const WrittenName& name);
  // Writes the call that builds a tensor, without memoizing the result.
  bool WriteTensor(const WrittenTensor& tensor);
  // Calls WriteTensor() with facts_, which describe `source`.
  bool WriteFacts(PyObject* source, bool requires_grad);
  // Copies the elements of a tensor into a dense storage.
  bool CopyDense(PyObject* tensor, PickledStorage* copy);
  Outcome SaveStorage(PyObject* object);
  bool SavePersistentId(const nanobind::object& object, bool is_typed);
  // Returns the row of a storage, adding one if needed; kNoRow with an error
  // set.
  static constexpr size_t kNoRow = ~size_t{0};
  size_t RowOf(PyObject* storage, PyObject* dtype, uint64_t item_bytes);
  size_t AddRow(PyObject* storage, PyObject* dtype, uint64_t item_bytes);
  bool RefuseSecondDType();
  nanobind::object LocationOf(PyObject* storage);
  bool SaveKey(size_t row);
  // Writes the end of a persistent id, after the count.
  void EndPersistentId();
  // Writes a frequent object: a global or a constant string.
  bool SaveNamed(const nanobind::object& global);

  // --- object_arrays.cc: NumPy arrays as tensors, NumPy scalars as numbers.
  Outcome SaveArray(PyObject* object);
  bool PlaceArray(PyObject* array, uint64_t unit_bytes, WrittenTensor* tensor);
  bool TorchName(const char* module, const char* name, WrittenName* written);

  // --- Errors.
  bool Fail(Code code, std::string_view what);
  bool Refuse(std::string_view what);
  // Turns the current error, a failed reduction, into kUnsafe.
  bool RefuseReduction(PyObject* object);

  const PickleObjectOptions& options_;
  PickleWriter writer_;
  ObjectPath path_;
  uint32_t depth_ = 0;
  // The object that is being built by calling a global, for messages; or null.
  PyObject* made_ = nullptr;
  std::vector<PyObject*> kept_;

  TorchNames torch_;
  TensorFacts facts_;
  ObjectWalker* survey_;
  CompactPlan plan_;              // The survey's plan.
  std::vector<size_t> cut_rows_;  // Row of each cut, or kNoRow.
  std::vector<int64_t> dense_strides_;
  ArrayNames arrays_;
  ArrayFacts array_facts_;
  // Python objects that exist without torch: "storage", "cpu",
  // collections.OrderedDict.
  nanobind::object storage_word_, cpu_, ordered_dict_;
  PickleMemo types_;  // From type to StorageKind.
  struct StorageNote {
    PyObject* dtype;    // The dtype its bytes are saved as.
    uint32_t key_memo;  // Memo number of its key, or kNone.
    bool is_allocated;
  };
  std::vector<PickledStorage> storages_;
  std::vector<StorageNote> notes_;
  // Rows by storage object, by the address of its StorageImpl, and by the
  // address of its bytes.
  PickleMemo rows_;
  PickleMemo rows_by_identity_;
  PickleMemo rows_by_data_;
  // Rows by owner of the memory, one for each dtype that views it.
  std::map<std::pair<PyObject*, const DTypeInfo*>, size_t> array_rows_;
};

template <class Copy>
bool ObjectWalker::PlaceInCut(size_t surveyed, uint64_t item_bytes,
                              uint64_t unit_bytes, const Copy& copy,
                              WrittenTensor* tensor, bool* placed) {
  *placed = false;
  bool is_empty = false;
  for (const int64_t size : tensor->shape) is_empty = is_empty || size == 0;
  const uint64_t begin =
      is_empty ? 0 : static_cast<uint64_t>(tensor->offset) * item_bytes;
  const size_t number = survey_->plan_.CutOf(surveyed, begin);
  if (number == CompactPlan::kWhole) return true;
  const StorageCut& cut = survey_->plan_.cut(number);
  cut_rows_.resize(survey_->plan_.cut_count(), kNoRow);
  size_t& row = cut_rows_[number];
  if (row == kNoRow) {
    PickledStorage part = survey_->storages_[surveyed];
    if (cut.is_sparse) {
      if (!copy(&part)) return false;
    } else {
      if (part.data != nullptr) part.data += cut.begin;
      part.nbytes = cut.end - cut.begin;
    }
    row = storages_.size();
    storages_.push_back(std::move(part));
    notes_.push_back({nullptr, PickleMemo::kNone, false});
  }
  tensor->row = row;
  tensor->count = storages_[row].nbytes / unit_bytes;
  tensor->offset = static_cast<int64_t>((begin - cut.begin) / item_bytes);
  if (cut.is_sparse) {
    dense_strides_ = DenseStrides(tensor->shape);
    tensor->strides = dense_strides_;
  }
  *placed = true;
  return true;
}

}  // namespace haulway::python
