// Ranges of a payload that come in any order.

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

// A RangeDecoder decodes ranges of one storage. The CRC-32 of ranges can be
// joined, so that a storage of which every byte came once is checked on the
// way; digests that cannot be joined are not looked at.
//
// Threads: any number at once.
class RangeDecoder {
 public:
  // Whether ranges of a storage can be decoded by themselves.
  static bool Takes(const StorageInfo& storage);

  // Checks the frame: `before` and `after` are as CheckFrame() takes them.
  // Requires: Takes(); `reader` and `watch` outlive it. Fails as the reader
  // does.
  static Result<std::unique_ptr<RangeDecoder>> Open(
      const FormatReader& reader, uint32_t row, bool verify,
      std::vector<std::byte> before, std::span<const std::byte> after,
      DecodeWatch* watch = DecodeWatch::None());

  // What must be read to have a range of the payload: the units in which it
  // lies.
  struct Units {
    uint64_t offset = 0;
    uint64_t length = 0;
  };
  Units UnitsOf(uint64_t offset, uint64_t length) const;
  // Returns the size of the ranges to bring: whole units, at most `largest` if
  // a unit fits.
  uint64_t Step(uint64_t largest) const;

  // Decodes whole units from `offset` of the payload on, where they lie.
  Status Decode(uint64_t offset, std::span<std::byte> units) const;

  // Whether Note() has a CRC-32 to compare with.
  bool checks() const { return has_crc32_ || !prefixed_.empty(); }

  // Notes bytes of the payload as they are before any swap. kMismatch, with
  // its place, if they were the last ones and the CRC-32 of all differs. Bytes
  // that are noted again are left out; ranges that overlap otherwise are not
  // checked.
  Status Note(uint64_t offset, std::span<const std::byte> piece);

 private:
  RangeDecoder(const FormatReader& reader, uint32_t row,
               std::vector<std::byte> before, DecodeWatch* watch)
      : reader_(reader), row_(row), before_(std::move(before)), watch_(watch) {}

  const StorageInfo& info() const { return reader_.index().storages[row_]; }
  // The CRC-32 of the payload, once every byte of it was noted.
  std::optional<uint32_t> Join(uint64_t offset,
                               std::span<const std::byte> piece);

  // What the CRC-32 of the payload, behind that of a prefix, must be.
  struct Prefixed {
    uint32_t prefix;
    uint32_t both;
  };

  const FormatReader& reader_;
  const uint32_t row_;
  std::vector<std::byte> before_;  // Where it is needed to decode.
  DecodeWatch* const watch_;
  uint64_t unit_bytes_ = 1;
  bool has_crc32_ = false;  // The index has one to be checked.
  std::vector<Prefixed> prefixed_;
  std::mutex mutex_;
  // The CRC-32 and length of what was noted, by offset.
  std::map<uint64_t, std::pair<uint32_t, uint64_t>> pieces_
      HAULWAY_GUARDED_BY(mutex_);
  uint64_t noted_ HAULWAY_GUARDED_BY(mutex_) = 0;
};

}  // namespace haulway
