// Raises Python exceptions for statuses.

#pragma once

#include <nanobind/nanobind.h>

#include <string_view>
#include <utility>

#include "base/gil.h"
#include "haulway/status.h"

namespace haulway::python {

// Throws the exception of haulway._errors for the status. `remedy` tells the
// caller what to do and ends the message. The exception that StatusOf()
// converted is its cause; one that is no Exception, such as KeyboardInterrupt,
// is thrown itself. Requires: the GIL is held, and the status is not ok.
[[noreturn]] void Raise(const Status& status, std::string_view remedy = {});

inline void Check(const Status& status) {
  if (!status.ok()) Raise(status);
}

template <class T>
T Unwrap(Result<T> result) {
  if (!result.ok()) Raise(result.status());
  return std::move(result).value();
}

// Converts an exception that Python raised to a status. `what` raised it;
// `code`: for exceptions without a code of their own. Requires: the GIL is
// held.
Status StatusOf(nanobind::python_error& raised, std::string_view what,
                Code code);

}  // namespace haulway::python
