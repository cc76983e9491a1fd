// The inside of PickleObject(): walks an object as CPython's pickler does.

#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

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
  bool WriteTensor(const TensorFacts& facts, bool requires_grad);
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
};

}  // namespace haulway::python
