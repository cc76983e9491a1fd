// The file of a signature: a Sigstore bundle v0.3, and the envelope in it
// (DSSE). Sources: sigstore/protobuf-specs, sigstore_bundle.proto; and
// secure-systems-lab/dsse, protocol.md. See docs/signing.md.

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "haulway/options.h"
#include "haulway/status.h"

namespace haulway::signing {

inline constexpr uint64_t kMostBundleBytes = 64 * kMiB;
inline constexpr size_t kMostCertificates = 32;
inline constexpr size_t kMostTimestamps = 32;
inline constexpr std::string_view kBundleType =
    "application/vnd.dev.sigstore.bundle.v0.3+json";
inline constexpr std::string_view kPayloadType = "application/vnd.in-toto+json";

// An entry of a transparency log, Rekor, and the proof that it is there.
struct LogEntry {
  uint64_t index = 0;  // In the log of all shards.
  std::string log_id;
  std::string kind, version;
  uint64_t time = 0;    // Seconds since 1970, by the log; 0: none.
  std::string promise;  // The log's signature over the entry; empty: none.
  uint64_t proof_index = 0;
  std::string root_hash;
  uint64_t tree_size = 0;
  std::vector<std::string> hashes;
  std::string checkpoint;
  std::string body;
};

struct Bundle {
  enum class Kind : uint8_t { kKey, kCertificates, kSigstore };
  Kind kind = Kind::kKey;
  std::optional<std::string> hint;        // kKey.
  std::vector<std::string> certificates;  // DER; the signer's first.
  std::optional<LogEntry> entry;          // kSigstore.
  std::vector<std::string> timestamps;    // Tokens of RFC 3161, as DER.
  std::string payload;
  std::string payload_type;
  std::string signature;
};

// Returns the error for a signature that does not show who signed.
inline Status NotSigned(std::string_view what) {
  return Status(Code::kSignature, what);
}

// Fails with kCorrupt, kLimit, or kUnsupported for a bundle of another version.
Result<Bundle> ParseBundle(std::string_view text);

// Returns the file of a signature by a key or by certificates.
std::string WriteBundle(const Bundle& bundle);

// Returns the bytes that are signed.
std::string SignedBytes(std::string_view payload_type,
                        std::string_view payload);
// The same as version 0.2.0 of model-signing made them.
std::string OldSignedBytes(std::string_view payload_type,
                           std::string_view payload);

}  // namespace haulway::signing
