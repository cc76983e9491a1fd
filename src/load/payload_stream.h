// Payloads that are read, decoded and digested piece by piece, while each
// piece is in cache.

#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "haulway/checkpoint.h"
#include "haulway/source.h"
#include "haulway/status.h"

namespace haulway {

// Compares the digests in a frame with a payload that is in memory, decoded.
// kMismatch if they differ; as FormatReader::Digests() else.
Status CheckDigests(const FormatReader& reader, uint32_t storage,
                    std::span<const std::byte> before,
                    std::span<const std::byte> after,
                    std::span<const std::byte> payload);

// Decodes the payload where it lies in units, on up to `threads` threads.
// Requires: it is kEncrypted.
Status DecodeInPlace(const FormatReader& reader, uint32_t storage,
                     std::span<const std::byte> frame,
                     std::span<std::byte> payload, int threads);

// Whether StreamStorage() can take it: nothing follows its payload that must
// be checked, and it is raw or decoded where it lies.
bool IsStreamable(const StorageInfo& storage);

// A storage and where it goes: its frame and payload.
struct StreamTarget {
  uint32_t storage = 0;
  std::span<std::byte> memory;
};

// Reads frames and payloads into their memory, a piece of each in turn,
// decoding it, and adding it to the digests if `verify`, of all together.
// `advance` is called with the bytes of each piece; its failure ends the call.
// A failure because of one of the targets sets `failed` to its number.
Status StreamStorages(const FormatReader& reader,
                      std::span<const StreamTarget> targets, bool verify,
                      const std::function<Status(uint64_t bytes)>& advance,
                      size_t* failed);

}  // namespace haulway
