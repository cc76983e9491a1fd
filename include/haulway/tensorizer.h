// What only tensorizer files say of their tensors: paths, types and headers.

#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "haulway/encryption.h"
#include "haulway/export.h"
#include "haulway/format.h"
#include "haulway/status.h"

namespace haulway {

enum class TensorizerType : uint8_t { kParameter, kBuffer, kStateDict };

// A step of a path: a key of a dict, or a position in a list.
struct TensorizerStep {
  bool is_position = false;
  uint64_t position = 0;
  std::string key;
};

struct TensorizerTensor {
  std::vector<TensorizerStep> path;
  TensorizerType type = TensorizerType::kStateDict;
};

// Of every tensor, parallel to the index's tensors. `of` is a checkpoint's
// reader(). Fails with kInvalidArgument if it is not of a tensorizer file.
HAULWAY_EXPORT Result<std::vector<TensorizerTensor>> TensorizerTensors(
    const FormatReader& of);

struct TensorizerHeader {
  uint16_t module_index = 0;
  std::vector<PayloadDigest> digests;
};

// Reads and checks the headers of the given rows of tensors. Fails as
// TensorizerTensors() and the format's rules do.
HAULWAY_EXPORT Result<std::vector<TensorizerHeader>> ReadTensorizerHeaders(
    const FormatReader& of, std::span<const uint32_t> rows);

// Whether a tensor of those bytes is what the digests are of. kMismatch if
// not.
HAULWAY_EXPORT Status CheckPayload(const std::vector<PayloadDigest>& digests,
                                   std::span<const std::byte> payload);

// The key that a passphrase gives, as libsodium's pwhash with Argon2id 1.3
// makes it. Requires: salt.size() == 16. Fails with kInvalidArgument for costs
// that the algorithm does not allow, and kLimit if there is no such memory.
HAULWAY_EXPORT Result<Secret> DeriveTensorizerKey(
    const Secret& passphrase, uint64_t operations, uint64_t memory_bytes,
    std::span<const std::byte> salt);

}  // namespace haulway
