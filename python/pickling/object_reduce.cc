// Design: an object whose type the walker does not handle itself is reduced as
// in CPython: by a dispatch table, then __reduce_ex__, then the checks that
// pickle.py makes on the result, in its order. A global is written only after a
// lookup has shown that its name leads back to the object and that it is data.
// Arguments, state and items are then walked like any other object.
//
// Calling copyreg and __reduce_ex__ runs Python code of the object's class.
// That is safe: the caller's own object is being written, nothing comes from a
// file. Reductions that need getattr or functools.partial below protocol 4 are
// refused, since no reader that runs no code could accept them.

#include <fmt/format.h>

#include <string>

#include "base/container_items.h"
#include "pickling/object_walker.h"

namespace nb = nanobind;

namespace haulway::python {

namespace {

constexpr std::string_view kExpected =
    "expected tensors, numbers, strings, containers of these, or what "
    "safe_globals allows";

// Returns an empty view with an error set if `text` is not a str.
std::string_view TextOf(const nb::object& text) {
  Py_ssize_t size = 0;
  const char* data = PyUnicode_AsUTF8AndSize(text.ptr(), &size);
  return data == nullptr ? std::string_view()
                         : std::string_view(data, static_cast<size_t>(size));
}

// Returns the attribute. The result is invalid if there is none; an error is
// set only if the lookup failed in another way.
nb::object FindAttribute(PyObject* object, const char* name) {
  nb::object found = nb::steal(PyObject_GetAttrString(object, name));
  if (!found.is_valid() && PyErr_ExceptionMatches(PyExc_AttributeError)) {
    PyErr_Clear();
  }
  return found;
}

std::string NameOfType(PyTypeObject* type) {
  const nb::object module =
      FindAttribute(reinterpret_cast<PyObject*>(type), "__module__");
  const nb::object name =
      FindAttribute(reinterpret_cast<PyObject*>(type), "__qualname__");
  PyErr_Clear();
  if (module.is_valid() && name.is_valid() && PyUnicode_Check(module.ptr()) &&
      PyUnicode_Check(name.ptr())) {
    std::string full(TextOf(module));
    full += '.';
    full += TextOf(name);
    PyErr_Clear();
    return full;
  }
  return type->tp_name;
}

// Returns the module that a global names as its own, else the module that
// contains it.
nb::object ModuleOf(PyObject* object, const nb::object& name) {
  nb::object module = FindAttribute(object, "__module__");
  if (PyErr_Occurred() != nullptr) return {};
  if (module.is_valid() && !module.is_none()) return module;
  const nb::object pickle = nb::steal(PyImport_ImportModule("pickle"));
  if (!pickle.is_valid()) return {};
  return nb::steal(PyObject_CallMethod(pickle.ptr(), "whichmodule", "OO",
                                       object, name.ptr()));
}

// Resolves a dotted path such as "Outer.Inner" in a module. Invalid with an
// error set on failure.
nb::object AttributeAt(nb::object found, std::string_view path) {
  while (found.is_valid()) {
    const size_t dot = path.find('.');
    const std::string name(path.substr(0, dot));
    found = nb::steal(PyObject_GetAttrString(found.ptr(), name.c_str()));
    if (dot == path.npos) break;
    path.remove_prefix(dot + 1);
  }
  return found;
}

// Returns whether the current error means that an object cannot be pickled.
bool CannotBePickled() {
  if (PyErr_ExceptionMatches(PyExc_TypeError) ||
      PyErr_ExceptionMatches(PyExc_AttributeError)) {
    return true;
  }
  PyObject* type = PyErr_Occurred();
  const auto* name = reinterpret_cast<PyTypeObject*>(type)->tp_name;
  return std::string_view(name) == "_pickle.PicklingError";
}

}  // namespace

bool ObjectWalker::Refuse(std::string_view what) {
  return Fail(Code::kUnsafe,
              fmt::format("{} is not data: {}", what, kExpected));
}

bool ObjectWalker::RefuseReduction(PyObject* object) {
  PyObject* type = nullptr;
  PyObject* value = nullptr;
  PyObject* trace = nullptr;
  PyErr_Fetch(&type, &value, &trace);
  PyErr_NormalizeException(&type, &value, &trace);
  Refuse(fmt::format("object of class {}", NameOfType(Py_TYPE(object))));
  PyObject* new_type = nullptr;
  PyObject* new_value = nullptr;
  PyObject* new_trace = nullptr;
  PyErr_Fetch(&new_type, &new_value, &new_trace);
  PyErr_NormalizeException(&new_type, &new_value, &new_trace);
  if (new_value != nullptr && value != nullptr) {
    PyException_SetCause(new_value, value);  // Steals the reference.
  } else {
    Py_XDECREF(value);
  }
  Py_XDECREF(type);
  Py_XDECREF(trace);
  PyErr_Restore(new_type, new_value, new_trace);
  return false;
}

bool ObjectWalker::IsData(std::string_view module,
                          std::string_view name) const {
  if (IsDataGlobal(module, name)) return true;
  if (module == "sys" || module == "os" || module == "posix" ||
      module == "nt") {
    return false;
  }
  return !options_.also_data.empty() &&
         options_.also_data.contains(fmt::format("{}.{}", module, name));
}

// Writes a global by its name after CPython's check that the name leads back to
// the object.
bool ObjectWalker::SaveGlobal(PyObject* object, PyObject* given_name) {
  nb::object name = nb::borrow(given_name);
  if (!name.is_valid()) name = FindAttribute(object, "__qualname__");
  if (!name.is_valid() && PyErr_Occurred() == nullptr) {
    name = nb::steal(PyObject_GetAttrString(object, "__name__"));
  }
  if (!name.is_valid()) return false;
  const nb::object module_name = ModuleOf(object, name);
  if (!module_name.is_valid()) return false;
  const std::string_view module = TextOf(module_name);
  const std::string_view path = TextOf(name);
  if (PyErr_Occurred() != nullptr) return false;

  const auto describe = [&] {
    if (made_ != nullptr) {
      // Modules and optimizers of torch.
      const bool has_state = PyObject_HasAttrString(made_, "state_dict") == 1;
      return fmt::format("object of class {}{}", NameOfType(Py_TYPE(made_)),
                         has_state ? ", whose state_dict() can be saved," : "");
    }
    const char* what = PyType_Check(object)                  ? "class"
                       : Py_TYPE(object) == &PyFunction_Type ? "function"
                                                             : "name";
    return fmt::format("{} {}.{}", what, module, path);
  };
  // Below protocol 4, a nested name is written as a call of getattr.
  const bool is_within = path.find('.') != path.npos;
  if ((is_within && options_.protocol < 4) || !IsData(module, path)) {
    return Refuse(describe());
  }
  const nb::object imported = nb::steal(PyImport_Import(module_name.ptr()));
  const nb::object found =
      imported.is_valid() ? AttributeAt(imported, path) : nb::object();
  if (found.ptr() != object) {
    PyErr_Clear();
    return Refuse(
        fmt::format("{}, which is not what that name leads to,", describe()));
  }
  if (options_.protocol >= 4) {
    if (!Save(module_name.ptr()) || !Save(name.ptr())) return false;
    writer_.StackGlobal();
    Put(object);
    return true;
  }
  // Protocol 2 allows only ASCII names.
  for (const std::string_view part : {module, path}) {
    for (const char c : part) {
      if (c == '\n' || ((c & 0x80) != 0 && options_.protocol < 3)) {
        return Refuse(describe());
      }
    }
  }
  writer_.Global(module, path);
  Put(object);
  return true;
}

bool ObjectWalker::SaveByReduction(PyObject* object) {
  PyTypeObject* type = Py_TYPE(object);
  const nb::object copyreg = nb::steal(PyImport_ImportModule("copyreg"));
  if (!copyreg.is_valid()) return false;
  const nb::object table =
      nb::steal(PyObject_GetAttrString(copyreg.ptr(), "dispatch_table"));
  if (!table.is_valid()) return false;
  const nb::object reduce =
      ValueOf(table.ptr(), reinterpret_cast<PyObject*>(type));
  if (!reduce.is_valid() && PyErr_Occurred() != nullptr) return false;
  nb::object reduction;
  if (reduce.is_valid()) {
    reduction = nb::steal(PyObject_CallOneArg(reduce.ptr(), object));
  } else if (PyType_IsSubtype(type, &PyType_Type) != 0) {
    return SaveGlobal(object, nullptr);
  } else {
    reduction = nb::steal(
        PyObject_CallMethod(object, "__reduce_ex__", "i", options_.protocol));
  }
  if (!reduction.is_valid()) {
    // An object that Python cannot pickle is not data, either.
    return CannotBePickled() ? RefuseReduction(object) : false;
  }
  if (PyUnicode_Check(reduction.ptr())) {
    return SaveGlobal(object, reduction.ptr());
  }
  return SaveReduction(reduction.ptr(), object);
}

bool ObjectWalker::SaveArguments(PyObject* args) {
  if (!PyTuple_CheckExact(args)) return Save(args);
  return writer_.Get(args) || SaveTuple(args, Steps::kHidden);
}

bool ObjectWalker::SaveCall(PyObject* callable, PyObject* args,
                            PyObject* object) {
  const nb::object name = FindAttribute(callable, "__name__");
  if (PyErr_Occurred() != nullptr) return false;
  if (name.is_valid() && PyUnicode_Check(name.ptr())) {
    if (PyUnicode_CompareWithASCIIString(name.ptr(), "__newobj__") == 0) {
      return SaveNew(args, object);
    }
    if (PyUnicode_CompareWithASCIIString(name.ptr(), "__newobj_ex__") == 0) {
      return SaveNewWithKeywords(args, object);
    }
  }
  PyObject* outer = made_;
  made_ = object;
  const bool saved = Save(callable);
  made_ = outer;
  if (!saved || !SaveArguments(args)) return false;
  writer_.Reduce();
  return true;
}

bool ObjectWalker::SaveClassOf(PyObject* args, PyObject* object) {
  PyObject* type =
      PyTuple_GET_SIZE(args) > 0 ? PyTuple_GET_ITEM(args, 0) : nullptr;
  if (type == nullptr || !PyType_Check(type) ||
      (object != nullptr &&
       nb::steal(PyObject_GetAttrString(object, "__class__")).ptr() != type)) {
    PyErr_Clear();
    return Refuse(
        fmt::format("object of class {}", NameOfType(Py_TYPE(object))));
  }
  PyObject* outer = made_;
  made_ = object;
  const bool saved = Save(type);
  made_ = outer;
  return saved;
}

// Writes cls.__new__(cls, *rest), the form that object.__reduce_ex__() returns.
bool ObjectWalker::SaveNew(PyObject* args, PyObject* object) {
  if (!SaveClassOf(args, object)) return false;
  const nb::object rest =
      nb::steal(PyTuple_GetSlice(args, 1, PyTuple_GET_SIZE(args)));
  if (!rest.is_valid() || !SaveArguments(rest.ptr())) return false;
  writer_.NewObj();
  return true;
}

// Writes cls.__new__(cls, *args, **keywords). Below protocol 4 this form is a
// call of functools.partial(), which is not data.
bool ObjectWalker::SaveNewWithKeywords(PyObject* args, PyObject* object) {
  if (options_.protocol < 4 || PyTuple_GET_SIZE(args) != 3 ||
      !PyTuple_Check(PyTuple_GET_ITEM(args, 1)) ||
      !PyDict_Check(PyTuple_GET_ITEM(args, 2))) {
    return Refuse(
        fmt::format("object of class {}", NameOfType(Py_TYPE(object))));
  }
  if (!SaveClassOf(args, object) || !SaveArguments(PyTuple_GET_ITEM(args, 1)) ||
      !Save(PyTuple_GET_ITEM(args, 2))) {
    return false;
  }
  writer_.NewObjEx();
  return true;
}

bool ObjectWalker::SaveReduction(PyObject* reduction, PyObject* object) {
  const Py_ssize_t size =
      PyTuple_Check(reduction) ? PyTuple_GET_SIZE(reduction) : 0;
  const auto part = [&](Py_ssize_t i) -> PyObject* {
    PyObject* item = i < size ? PyTuple_GET_ITEM(reduction, i) : nullptr;
    return item == Py_None ? nullptr : item;
  };
  PyObject* callable = part(0);
  PyObject* args = part(1);
  PyObject* state = part(2);
  PyObject* items = part(3);
  PyObject* pairs = part(4);
  PyObject* setter = part(5);
  if (size < 2 || size > 6 || callable == nullptr || args == nullptr ||
      PyCallable_Check(callable) == 0 || !PyTuple_Check(args) ||
      (items != nullptr && PyIter_Check(items) == 0) ||
      (pairs != nullptr && PyIter_Check(pairs) == 0) ||
      (setter != nullptr && PyCallable_Check(setter) == 0)) {
    return Refuse(fmt::format("object of class {}, which reduces to no call,",
                              NameOfType(Py_TYPE(object))));
  }
  if (!SaveCall(callable, args, object)) return false;
  if (writer_.Has(object)) {
    // The object's arguments contain the object itself, so it is already in the
    // memo.
    writer_.Pop();
    writer_.GetNumber(writer_.Find(object));
    return true;
  }
  Put(object);
  if (items != nullptr && !AppendFrom(items)) return false;
  if (pairs != nullptr && !SetItemsFrom(pairs)) return false;
  if (state == nullptr) return true;
  if (setter == nullptr) {
    if (!Save(state)) return false;
    writer_.Build();
    return true;
  }
  // Calls setter(object, state) and drops the result.
  if (!Save(setter) || !Save(object) || !Save(state)) return false;
  writer_.Tuple(2);
  writer_.Reduce();
  writer_.Pop();
  return true;
}

}  // namespace haulway::python
