// The inside of PickleObject(): walks an object as CPython's pickler does.

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

// Every method returns false with a Python error set. Objects that are
// memoized are kept alive, so that an address stays one object's alone.
class ObjectWalker {
 public:
  explicit ObjectWalker(const PickleObjectOptions& options)
      : ObjectWalker(options, nullptr) {}
  // The second walk of an object that is to be compact: `survey` is the first,
  // which saw how its storages are used and must live as long.
  ObjectWalker(const PickleObjectOptions& options, ObjectWalker* survey);
  ~ObjectWalker();
  ObjectWalker(const ObjectWalker&) = delete;
  ObjectWalker& operator=(const ObjectWalker&) = delete;

  // False with an error set if torch is not as it should be.
  bool ok() const { return torch_.ok(); }
  // To be called after a first walk.
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
  // Whether its parts are steps of the path.
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

  // --- object_reduce.cc: names, and what __reduce_ex__() says.
  bool SaveGlobal(PyObject* object, PyObject* name);
  bool SaveByReduction(PyObject* object);
  // `object` is null if what is made is not memoized.
  bool SaveReduction(PyObject* reduction, PyObject* object);
  // The callable and arguments of a reduction, up to its opcode.
  bool SaveCall(PyObject* callable, PyObject* args, PyObject* object);
  bool SaveArguments(PyObject* args);
  bool SaveNew(PyObject* args, PyObject* object);
  bool SaveNewWithKeywords(PyObject* args, PyObject* object);
  // The class of cls.__new__(cls, ...), which `args` begins with.
  bool SaveClassOf(PyObject* args, PyObject* object);
  bool IsData(std::string_view module, std::string_view name) const;

  // --- object_tensors.cc: tensors and storages of torch.
  // A dense tensor on the CPU that is nothing but its elements.
  Outcome SaveTensor(PyObject* tensor, bool is_parameter);
  // A name as the pickle has it, and what it is memoized by.
  struct WrittenName {
    PyObject* object = nullptr;  // Null while torch is not imported.
    const char* module = nullptr;
    const char* name = nullptr;
    const void* id = nullptr;
  };
  struct WrittenTensor {
    WrittenName rebuild;
    WrittenName storage_class;
    WrittenName dtype;  // Only for _rebuild_tensor_v3.
    size_t row = 0;     // The row of its storage.
    uint64_t count = 0;
    int64_t offset = 0;
    std::span<const int64_t> shape;
    std::span<const int64_t> strides;
    bool requires_grad = false;
  };
  // If the survey cut the storage of row `surveyed`, places the tensor in its
  // cut and sets `*placed`. `copy` makes its elements without holes, as
  // bool(PickledStorage*). The row counts units, the tensor items.
  template <class Copy>
  bool PlaceInCut(size_t surveyed, uint64_t item_bytes, uint64_t unit_bytes,
                  const Copy& copy, WrittenTensor* tensor, bool* placed);
  static WrittenName Written(const nanobind::object& object) {
    return {object.ptr(), nullptr, nullptr, object.ptr()};
  }
  bool SaveName(const WrittenName& name);
  // The call that makes a tensor; it is not memoized yet.
  bool WriteTensor(const WrittenTensor& tensor);
  // WriteTensor() of facts_, which are those of `source`.
  bool WriteFacts(PyObject* source, bool requires_grad);
  // The elements of a tensor in a storage of their own.
  bool CopyDense(PyObject* tensor, PickledStorage* copy);
  Outcome SaveStorage(PyObject* object);
  bool SavePersistentId(const nanobind::object& object, bool is_typed);
  // The row of a storage, which may be new; kNoRow with an error set.
  static constexpr size_t kNoRow = ~size_t{0};
  size_t RowOf(PyObject* storage, PyObject* dtype, uint64_t item_bytes);
  size_t AddRow(PyObject* storage, PyObject* dtype, uint64_t item_bytes);
  bool RefuseSecondDType();
  nanobind::object LocationOf(PyObject* storage);
  bool SaveKey(size_t row);
  // The end of a persistent id, after the count.
  void EndPersistentId();
  // What is met often: a global or a constant string.
  bool SaveNamed(const nanobind::object& global);

  // --- object_arrays.cc: NumPy arrays as tensors, NumPy scalars as numbers.
  Outcome SaveArray(PyObject* object);
  bool PlaceArray(PyObject* array, uint64_t unit_bytes, WrittenTensor* tensor);
  bool TorchName(const char* module, const char* name, WrittenName* written);

  // --- Failing.
  bool Fail(Code code, std::string_view what);
  bool Refuse(std::string_view what);
  // Turns the error of a reduction that cannot be into kUnsafe.
  bool RefuseReduction(PyObject* object);

  const PickleObjectOptions& options_;
  PickleWriter writer_;
  ObjectPath path_;
  uint32_t depth_ = 0;
  // What is being made by calling a global, for messages; or null.
  PyObject* made_ = nullptr;
  std::vector<PyObject*> kept_;

  TorchNames torch_;
  TensorFacts facts_;
  ObjectWalker* survey_;
  CompactPlan plan_;              // The survey's plan.
  std::vector<size_t> cut_rows_;  // Row of each of its cuts, or kNoRow.
  std::vector<int64_t> dense_strides_;
  ArrayNames arrays_;
  ArrayFacts array_facts_;
  // Python's own, torch or not: "storage", "cpu", collections.OrderedDict.
  nanobind::object storage_word_, cpu_, ordered_dict_;
  PickleMemo types_;  // Type to StorageKind.
  struct StorageNote {
    PyObject* dtype;    // That its bytes are saved as.
    uint32_t key_memo;  // Number of its key's text in the memo, or kNone.
    bool is_allocated;
  };
  std::vector<PickledStorage> storages_;
  std::vector<StorageNote> notes_;
  // Rows by storage object, by the address of what it stands for, and by that
  // of its bytes.
  PickleMemo rows_;
  PickleMemo rows_by_identity_;
  PickleMemo rows_by_data_;
  // Rows by what holds the memory, one for each dtype it is seen as.
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
