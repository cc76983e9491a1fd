// Statuses as Python exceptions.

#pragma once

#include <nanobind/nanobind.h>

#include <utility>

#include "haulway/status.h"

namespace haulway::python {

// Throws the exception of haulway._errors for the status. Requires: the GIL
// is held, and the status is not ok.
[[noreturn]] void Raise(const Status& status);

inline void Check(const Status& status) {
  if (!status.ok()) Raise(status);
}

template <class T>
T Unwrap(Result<T> result) {
  if (!result.ok()) Raise(result.status());
  return std::move(result).value();
}

// Runs `work` without the GIL and returns what it returns.
template <class Work>
auto WithoutGil(const Work& work) {
  const nanobind::gil_scoped_release release;
  return work();
}

}  // namespace haulway::python
