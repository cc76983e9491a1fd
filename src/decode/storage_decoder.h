// Processes a storage whose stored bytes are in memory: checks the frame,
// decodes the payload, compares digests, and swaps bytes. Does not read: see
// ByteSource, and the engine in load/.
//
// Three classes, by how the bytes arrive:
//   StorageDecoder    the whole storage at once;
//   SequenceDecoder   from start to end, piece by piece, each decoded and
//                     digested while it is in cache (sequence_decoder.h);
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

// Returns text such as "storage 'data/0'".
std::string PlaceOf(const StorageInfo& storage);
// Adds the place to a digest mismatch. Other failures already have their place.
Status PlaceMismatch(Status status, const StorageInfo& storage);
// Fails with kMismatch and the place if the index has a CRC-32 that differs
// from `found`.
Status CompareCrc32(const StorageInfo& storage, uint32_t found);

// Returns the piece size for decoding a payload in place: whole units, at most
// `largest` if one unit fits; the whole payload if it is a single unit.
Result<uint64_t> DecodeStep(const FormatReader& reader, uint32_t row,
                            std::span<const std::byte> frame, uint64_t largest);

// The bytes of a storage as in the source, including its frame.
struct StoredBytes {
  std::span<const std::byte> before;  // From frame_offset to offset.
  std::span<std::byte> stored;
  std::span<const std::byte> after;  // From the payload's end to frame_end.
};
// Splits the bytes from frame_offset to frame_end. Requires: `frame` has
// exactly these bytes.
StoredBytes SplitFrame(const StorageInfo& storage, std::span<std::byte> frame);

struct DecodeOptions {
  bool verify = false;  // Whether to verify every CRC-32 and digest.
  // Whether memory is zero before decoding. If so, memory of a storage of zeros
  // is not touched.
  bool is_zeroed = false;
};

// A StorageDecoder decodes whole storages. Threads: any number at once.
class StorageDecoder {
 public:
  // Requires: `reader` and `watch` outlive the decoder.
  StorageDecoder(const FormatReader& reader, const DecodeOptions& options,
                 DecodeWatch* watch = DecodeWatch::None())
      : reader_(reader), options_(options), watch_(watch) {}

  // Checks the frame, and decodes, verifies and swaps the payload into
  // `payload`, which has nbytes bytes and is bytes.stored unless the encoding
  // needs_memory(). Uses up to `threads` threads. `crc32`: CRC-32 of the
  // payload, if known. Fails as the reader does, and with kCancelled after
  // cancellation.
  Status Finish(uint32_t row, const StoredBytes& bytes,
                std::span<std::byte> payload, int threads,
                std::optional<uint32_t> crc32 = std::nullopt) const;

  // Does the same for a payload that is used in place (IsAsInMemory()) and is
  // read-only.
  Status Check(uint32_t row, const StoredBytes& bytes,
               std::optional<uint32_t> crc32 = std::nullopt) const;

  Status CheckFrame(uint32_t row, std::span<const std::byte> before,
                    std::span<const std::byte> after) const {
    return reader_.CheckFrame(row, before, after);
  }

  // Returns whether Finish() writes to the payload's own memory.
  bool Writes(uint32_t row) const;
  // Returns whether decoding or verifying the storage takes time that can
  // overlap with reading.
  bool HasWork(uint32_t row) const;
  // Returns whether Finish() compares a CRC-32 that the caller can compute from
  // the stored bytes as they arrive.
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

// Decodes whole units of a payload in place, from `offset`, on up to `threads`
// threads.
Status DecodeInPlace(const FormatReader& reader, uint32_t row,
                     std::span<const std::byte> before, uint64_t offset,
                     std::span<std::byte> units, int threads,
                     const DecodeWatch& watch);

}  // namespace haulway
