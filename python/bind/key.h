// Keys and passphrases from Python.

#pragma once

#include <nanobind/nanobind.h>

#include <string>
#include <string_view>

#include "base/errors.h"
#include "haulway/options.h"

namespace haulway::python {

// Bytes, or None for no secret. Calls check what users give (_secrets.py); this
// refuses what did not go that way. Python's own copy is the caller's affair.
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
