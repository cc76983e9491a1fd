// Decodes ranges of a payload in any order.

#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "decode/decode_watch.h"
#include "haulway/format.h"
#include "haulway/status.h"

namespace haulway {

// A RangeDecoder decodes ranges of one storage. CRC-32s of ranges can be
// combined, so a storage whose bytes were all passed to Note() once is
// verified. Digests that cannot be combined are ignored.
//
// Threads: any number at once.
class RangeDecoder {
 public:
  // Returns whether ranges of the storage can be decoded separately.
  static bool Takes(const StorageInfo& storage);

  // Checks the frame. `before` and `after` are the arguments of CheckFrame().
  // Requires: Takes(); `reader` and `watch` outlive the decoder. Fails as the
  // reader does.
  static Result<std::unique_ptr<RangeDecoder>> Open(
      const FormatReader& reader, uint32_t row, bool verify,
      std::vector<std::byte> before, std::span<const std::byte> after,
      DecodeWatch* watch = DecodeWatch::None());

  // The bytes to read for a range of the payload: the units that contain it.
  struct Units {
    uint64_t offset = 0;
    uint64_t length = 0;
  };
  Units UnitsOf(uint64_t offset, uint64_t length) const;
  // Returns the range size to use: whole units, at most `largest` if one unit
  // fits.
  uint64_t Step(uint64_t largest) const;

  // Decodes whole units in place, from `offset` of the payload.
  Status Decode(uint64_t offset, std::span<std::byte> units) const;

  // Returns whether Note() has a CRC-32 to compare with.
  bool checks() const { return has_crc32_ || !prefixed_.empty(); }

  // Returns whether Note() has nothing more to compare.
  bool is_done() const;

  // Records bytes of the payload, before byte swapping. Fails with kMismatch
  // and the place if these are the last bytes and the CRC-32 of the whole
  // payload differs. Bytes at an offset that was recorded before are ignored.
  // If ranges overlap in other ways, the payload is not verified.
  Status Note(uint64_t offset, std::span<const std::byte> piece);

 private:
  RangeDecoder(const FormatReader& reader, uint32_t row,
               std::vector<std::byte> before, DecodeWatch* watch)
      : reader_(reader), row_(row), before_(std::move(before)), watch_(watch) {}

  const StorageInfo& info() const { return reader_.index().storages[row_]; }
  // Returns the CRC-32 of the payload after every byte was recorded; before
  // that, nullopt.
  std::optional<uint32_t> Join(uint64_t offset,
                               std::span<const std::byte> piece);

  // The expected CRC-32 of a prefix followed by the payload.
  struct Prefixed {
    uint32_t prefix;
    uint32_t both;
  };

  const FormatReader& reader_;
  const uint32_t row_;
  std::vector<std::byte> before_;  // Kept if needed for decoding.
  DecodeWatch* const watch_;
  uint64_t unit_bytes_ = 1;
  bool has_crc32_ = false;  // Whether to verify the index's CRC-32.
  std::vector<Prefixed> prefixed_;
  mutable std::mutex mutex_;
  // CRC-32 and length of each recorded range, by offset.
  std::map<uint64_t, std::pair<uint32_t, uint64_t>> pieces_
      HAULWAY_GUARDED_BY(mutex_);
  uint64_t noted_ HAULWAY_GUARDED_BY(mutex_) = 0;
};

}  // namespace haulway
