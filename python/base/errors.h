// Statuses as Python exceptions.

#pragma once

#include <nanobind/nanobind.h>

#include <string_view>
#include <utility>

#include "base/gil.h"
#include "haulway/status.h"

namespace haulway::python {

// Throws the exception of haulway._errors for the status. Requires: the GIL
// is held, and the status is not ok. `remedy`: what the caller can do, to be
// said after all else.
[[noreturn]] void Raise(const Status& status, std::string_view remedy = {});

inline void Check(const Status& status) {
  if (!status.ok()) Raise(status);
}

template <class T>
T Unwrap(Result<T> result) {
  if (!result.ok()) Raise(result.status());
  return std::move(result).value();
}

}  // namespace haulway::python
