// Properties of a storage's encoding.
//
// Code outside the formats' folders asks for these properties, never for the
// encoding itself. Most code need not ask at all, since the decoders in this
// folder handle the differences. A new encoding needs a row in the table, and
// Decode() in its format.

#pragma once

#include <cstdint>

#include "haulway/index.h"

namespace haulway {

struct EncodingTraits {
  // Whether bytes are stored. If not, every byte is zero.
  bool is_stored;
  // Whether stored bytes equal the bytes in memory, except for byte order.
  bool is_raw;
  // Whether bytes are decoded in place, each unit (UnitBytes) separately.
  bool is_in_place;
  // Whether bytes are decoded all at once, from other memory.
  bool is_apart;

  // Returns whether decoding needs memory other than that of the stored bytes.
  bool needs_memory() const { return is_apart || !is_stored; }
  // Returns whether a range can be decoded without the other bytes.
  bool has_ranges() const { return is_raw || is_in_place; }
};

const EncodingTraits& TraitsOf(const StorageInfo& storage);

// Returns whether the payload in the source equals the bytes in memory.
bool IsAsInMemory(const StorageInfo& storage);
// Returns whether a view of the source can be used directly.
bool IsUsableInPlace(const StorageInfo& storage);

}  // namespace haulway
