// Finds the certificates that the system's programs trust.

#pragma once

#include <string>

#include "haulway/status.h"

namespace haulway::net {

// A file or a folder of certificates, as OpenSSL and libcurl expect them. At
// least one is set.
struct Authorities {
  std::string file;
  std::string folder;
};

// Returns `file` and `folder` if one of them is set. Otherwise returns the
// first readable place where a distribution keeps certificates, searching like
// Go's crypto/x509. Fails with kInvalidArgument, naming the options to set, if
// there is none. `root` is prepended to the places.
Result<Authorities> FindAuthorities(const std::string& file,
                                    const std::string& folder,
                                    const std::string& root = "");

}  // namespace haulway::net
