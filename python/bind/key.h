// Accepts keys and passphrases from Python.

#pragma once

#include <nanobind/nanobind.h>

#include <string>
#include <string_view>

#include "base/errors.h"
#include "haulway/options.h"

namespace haulway::python {

// Converts bytes, or None for no secret. Calls check user input first
// (_secrets.py); this function refuses input that bypassed the check. The
// caller is responsible for Python's own copy.
inline Secret SecretOf(const char* name, nanobind::handle bytes) {
  if (bytes.is_none()) return Secret();
  if (!PyBytes_Check(bytes.ptr()) || PyBytes_GET_SIZE(bytes.ptr()) == 0) {
    Raise(Status(Code::kInvalidArgument,
                 std::string(name) + " is no secret: expected bytes"));
  }
  const auto held = nanobind::borrow<nanobind::bytes>(bytes);
  return Secret(std::string_view(held.c_str(), held.size()));
}

}  // namespace haulway::python
