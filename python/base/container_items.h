// Items of lists and dicts that belong to the caller's program, whose other
// threads may change them meanwhile: each is a reference of its own.

#pragma once

#include <nanobind/nanobind.h>

namespace haulway::python {

// An item of a list; no object if the list has become shorter.
inline nanobind::object ItemAt(PyObject* list, Py_ssize_t index) {
#ifdef Py_GIL_DISABLED
  PyObject* const item = PyList_GetItemRef(list, index);
  if (item == nullptr) PyErr_Clear();
  return nanobind::steal(item);
#else
  return nanobind::borrow(PyList_GET_ITEM(list, index));
#endif
}

// The value of a key; no object if there is none, or, with an error set, if
// the key cannot be looked for.
inline nanobind::object ValueOf(PyObject* dict, PyObject* key) {
#if PY_VERSION_HEX >= 0x030D0000
  PyObject* value = nullptr;
  (void)PyDict_GetItemRef(dict, key, &value);
  return nanobind::steal(value);
#else
  return nanobind::borrow(PyDict_GetItemWithError(dict, key));
#endif
}

// As PyDict_Next(), which returns references that are not the caller's.
inline bool NextItem(PyObject* dict, Py_ssize_t* place, nanobind::object* key,
                     nanobind::object* value) {
  PyObject* found_key = nullptr;
  PyObject* found_value = nullptr;
  {
    const nanobind::ft_object_guard guard(dict);
    if (PyDict_Next(dict, place, &found_key, &found_value) == 0) return false;
    Py_INCREF(found_key);
    Py_INCREF(found_value);
  }
  *key = nanobind::steal(found_key);
  *value = nanobind::steal(found_value);
  return true;
}

}  // namespace haulway::python
