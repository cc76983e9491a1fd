// What remains to be done of a storage when its bytes are in memory.

#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "haulway/format.h"
#include "haulway/load.h"
#include "haulway/status.h"
#include "load/load_progress.h"

namespace haulway {

// "storage 'data/0'".
std::string PlaceOf(const StorageInfo& storage);
// Adds the place to a digest that differs; other failures name theirs.
Status PlaceMismatch(Status status, const StorageInfo& storage);

// The bytes of a storage, frame and all, as they are in the source.
struct StoredBytes {
  std::span<const std::byte> before;  // From frame_offset to offset.
  std::span<std::byte> stored;
  std::span<const std::byte> after;  // From the payload's end to frame_end.
};
// Cuts the bytes from frame_offset to frame_end. Requires: they are as many.
StoredBytes SplitFrame(const StorageInfo& storage, std::span<std::byte> frame);

// Threads: any number at once.
class StorageFinisher {
 public:
  // Requires: all outlive it.
  StorageFinisher(const FormatReader& reader, const LoadOptions& options,
                  LoadProgress* progress)
      : reader_(reader), options_(options), progress_(progress) {}

  // Checks the frame, and decodes, verifies and swaps the payload, into
  // `payload` of nbytes, which is bytes.stored where it stays. `crc32` is that
  // of the payload if it is known. Fails as the reader does; kCancelled once
  // the load is to stop.
  Status Finish(uint32_t row, const StoredBytes& bytes,
                std::span<std::byte> payload, int threads,
                std::optional<uint32_t> crc32 = std::nullopt) const;

  // Compares the payload in memory, not swapped yet, with what the index and
  // the frame hold of digests, if the options ask for it.
  Status Verify(uint32_t row, const StoredBytes& bytes,
                std::span<const std::byte> payload,
                std::optional<uint32_t> crc32 = std::nullopt) const;

  // kMismatch, with its place, unless it is the one in the index.
  Status CompareCrc32(uint32_t row, uint32_t found) const;

  // Decodes an encrypted payload, or whole units of it from `offset` on, where
  // it lies, on up to `threads` threads.
  Status DecodeInPlace(uint32_t row, std::span<const std::byte> before,
                       uint64_t offset, std::span<std::byte> payload,
                       int threads) const;

 private:
  const StorageInfo& info(uint32_t row) const {
    return reader_.index().storages[row];
  }
  Status Decode(uint32_t row, const StoredBytes& bytes,
                std::span<std::byte> payload, int threads) const;

  const FormatReader& reader_;
  const LoadOptions& options_;
  LoadProgress* const progress_;
};

}  // namespace haulway
