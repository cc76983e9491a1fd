// What the encoding of a storage means for whoever brings it to memory.
//
// Outside the formats' own folders nobody asks which encoding a storage has,
// only for these properties, and mostly not for them either, since the decoders
// of this folder do what follows from them. A new encoding is a row of the
// table, and Decode() of the format that has it.

#pragma once

#include <cstdint>

#include "haulway/index.h"

namespace haulway {

struct EncodingTraits {
  // Whether anything is stored; without it every byte is zero.
  bool is_stored;
  // Whether stored bytes are those in memory, but for their order.
  bool is_raw;
  // Whether they are decoded where they lie, any unit (UnitBytes) by itself.
  bool is_in_place;
  // Whether they are decoded all at once, from other memory.
  bool is_apart;

  // Whether bytes come into being that are read from nowhere as they are.
  bool needs_memory() const { return is_apart || !is_stored; }
  // Whether a range of the bytes in memory can be had without the others.
  bool has_ranges() const { return is_raw || is_in_place; }
};

const EncodingTraits& TraitsOf(const StorageInfo& storage);

// Whether the payload lies in the source byte for byte as it is in memory.
bool IsAsInMemory(const StorageInfo& storage);
// Whether it can be used where the source has it, if that is in memory.
bool IsUsableInPlace(const StorageInfo& storage);

}  // namespace haulway
