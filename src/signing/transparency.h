// What the logs of Sigstore prove: that a certificate was published, and that a
// signature was. Sources: RFC 6962; sigstore/rekor, types dsse 0.0.1 and
// hashedrekord 0.0.2; C2SP, tlog-checkpoint.md.

#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "haulway/status.h"
#include "signing/bundle.h"
#include "signing/openssl.h"
#include "signing/trusted_root.h"

namespace haulway::signing {

// Checks the certificate's SCT, by which a log promised to publish it. Fails
// with kSignature.
Status CheckPublished(X509* certificate, X509* issuer,
                      const std::vector<LogKey>& logs);

// Checks that the log has the entry: the path in the tree, the signed
// checkpoint, and the promise, if there is one. Fails with kSignature.
Status CheckLogged(const LogEntry& entry, const std::vector<LogKey>& logs);

// Checks that the entry is of this signature by this certificate (DER). Fails
// with kSignature, and with kUnsupported for another kind of entry.
Status CheckEntryIsOf(const LogEntry& entry, const Bundle& bundle);

// Returns the root of the tree, from a leaf's hash and its audit path (RFC
// 6962, 2.1.1), or an empty string if the path does not fit the tree. Public
// for tests.
std::string RootOfTree(std::string leaf, uint64_t index, uint64_t size,
                       const std::vector<std::string>& path);

}  // namespace haulway::signing
