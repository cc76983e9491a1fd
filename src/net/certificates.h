// Where a system keeps the certificates that its programs trust.

#pragma once

#include <string>

#include "haulway/status.h"

namespace haulway::net {

// A file of certificates or a folder of them, as OpenSSL and libcurl take
// these: at least one is set.
struct Authorities {
  std::string file;
  std::string folder;
};

// Returns `file` and `folder` if one of them is set. Otherwise returns the
// first of the places where distributions keep certificates that can be read,
// as Go's crypto/x509 looks for them. Fails with kInvalidArgument, naming what
// can be set, if there is none. `root` stands in front of the places.
Result<Authorities> FindAuthorities(const std::string& file,
                                    const std::string& folder,
                                    const std::string& root = "");

}  // namespace haulway::net
