// The keys and certificates of a Sigstore instance. Source:
// sigstore/protobuf-specs, sigstore_trustroot.proto.

#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "haulway/status.h"

namespace haulway::signing {

// Seconds since 1970.
struct Validity {
  int64_t begin = std::numeric_limits<int64_t>::min();
  int64_t end = std::numeric_limits<int64_t>::max();

  bool Has(int64_t time) const { return begin <= time && time <= end; }
};

struct LogKey {
  std::string id;
  std::string key;  // SubjectPublicKeyInfo, DER.
};

struct Authority {
  std::vector<std::string> certificates;  // DER; the root is last.
  Validity validity;
};

struct TrustedRoot {
  std::vector<LogKey> logs;              // Transparency logs, Rekor.
  std::vector<LogKey> certificate_logs;  // Certificate transparency.
  std::vector<Authority> authorities;    // Of certificates, Fulcio.
  std::vector<Authority> time_stampers;
};

// Takes a trusted root, alone or inside of a client's trust configuration.
// Fails with kCorrupt, kLimit, and kInvalidArgument for other JSON.
Result<TrustedRoot> ParseTrustedRoot(std::string_view text);

}  // namespace haulway::signing
