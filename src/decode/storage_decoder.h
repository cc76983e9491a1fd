// What remains to be done of a storage when its stored bytes are in memory:
// its frame is checked, its payload decoded, its digests compared, and its
// bytes turned around. Nothing here reads: see ByteSource, and the engine in
// load/.
//
// There are three ways through here, by how the bytes come:
//   StorageDecoder    the whole storage at once;
//   SequenceDecoder   from its start to its end, piece by piece, each decoded
//                     and digested while it is in cache (sequence_decoder.h);
//   RangeDecoder      ranges in any order (range_decoder.h).

#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "decode/decode_watch.h"
#include "haulway/format.h"
#include "haulway/status.h"

namespace haulway {

// "storage 'data/0'".
std::string PlaceOf(const StorageInfo& storage);
// Adds the place to a digest that differs; other failures name theirs.
Status PlaceMismatch(Status status, const StorageInfo& storage);
// kMismatch, with its place, unless it is the one in the index, if that has
// one.
Status CompareCrc32(const StorageInfo& storage, uint32_t found);

// Returns the size of the pieces in which a payload that is decoded in place is
// decoded: at most `largest` if that holds a unit; the whole payload if it is
// one unit.
Result<uint64_t> DecodeStep(const FormatReader& reader, uint32_t row,
                            std::span<const std::byte> frame, uint64_t largest);

// The bytes of a storage, frame and all, as they are in the source.
struct StoredBytes {
  std::span<const std::byte> before;  // From frame_offset to offset.
  std::span<std::byte> stored;
  std::span<const std::byte> after;  // From the payload's end to frame_end.
};
// Cuts the bytes from frame_offset to frame_end. Requires: they are as many.
StoredBytes SplitFrame(const StorageInfo& storage, std::span<std::byte> frame);

struct DecodeOptions {
  bool verify = false;  // Check every CRC-32 and digest that there is.
  // Whether memory is zero before anything is written there: what a storage
  // of zeros takes is not touched then.
  bool is_zeroed = false;
};

// Threads: any number at once.
class StorageDecoder {
 public:
  // Requires: `reader` and `watch` outlive it.
  StorageDecoder(const FormatReader& reader, const DecodeOptions& options,
                 DecodeWatch* watch = DecodeWatch::None())
      : reader_(reader), options_(options), watch_(watch) {}

  // Checks the frame, and decodes, verifies and swaps the payload, into
  // `payload` of nbytes, which is bytes.stored where it stays (not
  // needs_memory()). On up to `threads` threads. `crc32` is that of the
  // payload if it is known. Fails as the reader does; kCancelled once it is to
  // stop.
  Status Finish(uint32_t row, const StoredBytes& bytes,
                std::span<std::byte> payload, int threads,
                std::optional<uint32_t> crc32 = std::nullopt) const;

  // The same for a payload that is used where it is, IsAsInMemory(), and may
  // not be written to.
  Status Check(uint32_t row, const StoredBytes& bytes,
               std::optional<uint32_t> crc32 = std::nullopt) const;

  Status CheckFrame(uint32_t row, std::span<const std::byte> before,
                    std::span<const std::byte> after) const {
    return reader_.CheckFrame(row, before, after);
  }

  // Whether Finish() writes to memory of its own for the payload.
  bool Writes(uint32_t row) const;
  // Whether decoding or verifying it takes time that reading could overlap.
  bool HasWork(uint32_t row) const;
  // Whether the CRC-32 that Finish() takes can be had of the stored bytes as
  // they come, and is wanted.
  bool TakesCrc32(uint32_t row) const;

 private:
  const StorageInfo& info(uint32_t row) const {
    return reader_.index().storages[row];
  }
  Status Decode(uint32_t row, const StoredBytes& bytes,
                std::span<std::byte> payload, int threads) const;
  Status Verify(uint32_t row, const StoredBytes& bytes,
                std::span<const std::byte> payload,
                std::optional<uint32_t> crc32) const;

  const FormatReader& reader_;
  const DecodeOptions options_;
  DecodeWatch* const watch_;
};

// Decodes whole units of a payload from `offset` on, where they lie, on up to
// `threads` threads.
Status DecodeInPlace(const FormatReader& reader, uint32_t row,
                     std::span<const std::byte> before, uint64_t offset,
                     std::span<std::byte> units, int threads,
                     const DecodeWatch& watch);

}  // namespace haulway
