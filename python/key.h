// Keys and passphrases from Python.

#pragma once

#include <nanobind/nanobind.h>

#include "errors.h"
#include "haulway/options.h"

namespace haulway::python {

// Bytes, or None for no secret. Python's own copy is the caller's affair.
inline Secret SecretOf(nanobind::handle bytes) {
  if (bytes.is_none()) return Secret();
  const auto held = nanobind::cast<nanobind::bytes>(bytes);
  return Secret(std::string_view(held.c_str(), held.size()));
}

inline EncryptionKey KeyOf(nanobind::handle key, nanobind::handle passphrase) {
  EncryptionKey held{SecretOf(key), SecretOf(passphrase)};
  if (!key.is_none() && held.key.empty()) {
    Raise(Status(Code::kInvalidArgument, "key is empty"));
  }
  if (!passphrase.is_none() && held.passphrase.empty()) {
    Raise(Status(Code::kInvalidArgument, "passphrase is empty"));
  }
  return held;
}

}  // namespace haulway::python
