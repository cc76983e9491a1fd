#include "decode/encoding_traits.h"

namespace haulway {

namespace {

// Indexed by Encoding.
constexpr EncodingTraits kTraits[] = {
    // kRaw.
    {.is_stored = true,
     .is_raw = true,
     .is_in_place = false,
     .is_apart = false},
    // kDeflate.
    {.is_stored = true,
     .is_raw = false,
     .is_in_place = false,
     .is_apart = true},
    // kEncrypted.
    {.is_stored = true,
     .is_raw = false,
     .is_in_place = true,
     .is_apart = false},
    // kZeros.
    {.is_stored = false,
     .is_raw = false,
     .is_in_place = false,
     .is_apart = false},
    // kDelta.
    {.is_stored = true,
     .is_raw = false,
     .is_in_place = true,
     .is_apart = false},
};

static_assert(static_cast<int>(Encoding::kRaw) == 0 &&
              static_cast<int>(Encoding::kDeflate) == 1 &&
              static_cast<int>(Encoding::kEncrypted) == 2 &&
              static_cast<int>(Encoding::kZeros) == 3 &&
              static_cast<int>(Encoding::kDelta) == 4);

}  // namespace

const EncodingTraits& TraitsOf(const StorageInfo& storage) {
  return kTraits[static_cast<int>(storage.encoding)];
}

bool IsAsInMemory(const StorageInfo& storage) {
  return TraitsOf(storage).is_raw && storage.swap_bytes == 1;
}

bool IsUsableInPlace(const StorageInfo& storage) {
  return IsAsInMemory(storage) && storage.offset % storage.alignment() == 0;
}

}  // namespace haulway
