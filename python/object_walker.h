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

#include "array_memory.h"
#include "haulway/pickle.h"
#include "haulway/status.h"
#include "object_path.h"
#include "pickle_object.h"
#include "torch_names.h"

namespace haulway::python {

// Every method returns false with a Python error set. Objects that are
// memoized are kept alive, so that an address stays one object's alone.
class ObjectWalker {
 public:
  explicit ObjectWalker(const PickleObjectOptions& options);
  ~ObjectWalker();
  ObjectWalker(const ObjectWalker&) = delete;
  ObjectWalker& operator=(const ObjectWalker&) = delete;

  // False with an error set if torch is not as it should be.
  bool ok() const { return torch_.ok(); }
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
  bool SaveSet(PyObject* object);
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
    WrittenName dtype;  // Of _rebuild_tensor_v3 only.
    size_t row = 0;     // Of its storage.
    uint64_t count = 0;
    int64_t offset = 0;
    std::span<const int64_t> shape;
    std::span<const int64_t> strides;
    bool requires_grad = false;
  };
  static WrittenName Written(const nanobind::object& object) {
    return {object.ptr(), nullptr, nullptr, object.ptr()};
  }
  bool SaveName(const WrittenName& name);
  // The call that makes a tensor; it is not memoized yet.
  bool WriteTensor(const WrittenTensor& tensor);
  // WriteTensor() of facts_.
  bool WriteFacts(bool requires_grad);
  Outcome SaveStorage(PyObject* object);
  bool SavePersistentId(const nanobind::object& object, bool is_typed);
  // The row of a storage, which may be new; kNoRow with an error set.
  static constexpr size_t kNoRow = ~size_t{0};
  size_t RowOf(PyObject* storage, PyObject* dtype);
  size_t AddRow(PyObject* storage, PyObject* dtype);
  bool RefuseSecondDType();
  nanobind::object LocationOf(PyObject* storage);
  bool SaveKey(size_t row);
  // What is met often: a global or a constant string.
  bool SaveNamed(const nanobind::object& global);

  // --- object_arrays.cc: NumPy arrays as tensors, NumPy scalars as numbers.
  Outcome SaveArray(PyObject* object);
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
  PickleMemo rows_by_cdata_;
  PickleMemo rows_by_data_;
  // Rows by what holds the memory, one for each dtype it is seen as.
  std::map<std::pair<PyObject*, const ArrayType*>, size_t> array_rows_;
};

}  // namespace haulway::python
