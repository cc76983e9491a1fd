#include "net/certificates.h"

#include <unistd.h>

namespace haulway::net {

namespace {

// Files that the distributions' certificate packages install.
constexpr const char* kFiles[] = {
    "/etc/ssl/certs/ca-certificates.crt",                 // Debian, Arch.
    "/etc/pki/tls/certs/ca-bundle.crt",                   // Fedora.
    "/etc/ssl/ca-bundle.pem",                             // openSUSE.
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",  // RHEL.
    "/etc/ssl/cert.pem",                                  // Alpine.
};
constexpr const char* kFolders[] = {"/etc/ssl/certs", "/etc/pki/tls/certs"};

}  // namespace

Result<Authorities> FindAuthorities(const std::string& file,
                                    const std::string& folder,
                                    const std::string& root) {
  if (!file.empty() || !folder.empty()) return Authorities{file, folder};
  for (const char* place : kFiles) {
    std::string path = root + place;
    if (::access(path.c_str(), R_OK) == 0) return Authorities{path, ""};
  }
  for (const char* place : kFolders) {
    std::string path = root + place;
    if (::access(path.c_str(), R_OK | X_OK) == 0) return Authorities{"", path};
  }
  return Status(Code::kInvalidArgument,
                "no certificates were found on this system: name a file of "
                "them with the option ca_file or SSL_CERT_FILE");
}

}  // namespace haulway::net
