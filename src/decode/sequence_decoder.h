// Decodes payloads from start to end, piece by piece.

#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "decode/decode_watch.h"
#include "haulway/format.h"
#include "haulway/source.h"
#include "haulway/status.h"
#include "tensor/payload_digest.h"

namespace haulway {

// A SequenceDecoder decodes and digests each piece while the piece is in cache.
// Threads: one at a time.
class SequenceDecoder {
 public:
  // Returns whether the decoder supports the storage: no frame bytes follow the
  // payload, bytes are not swapped, and decoding, if any, is in place.
  static bool Takes(const StorageInfo& storage);

  // Checks `frame`, the bytes before the payload. Requires: Takes(), or nothing
  // is stored; all arguments outlive the decoder. Fails as the reader does.
  static Result<SequenceDecoder> Open(const FormatReader& reader, uint32_t row,
                                      bool verify,
                                      std::span<const std::byte> frame,
                                      DecodeWatch* watch = DecodeWatch::None());

  const StorageInfo& info() const { return reader_->index().storages[row_]; }
  // Number of payload bytes decoded so far.
  uint64_t done() const { return done_; }

  // Returns the piece size to use: whole units, at most `largest` if one unit
  // fits.
  Result<uint64_t> Step(uint64_t largest) const;
  // Decodes the next bytes in place. Requires: whole units, except for the last
  // piece.
  Status Decode(std::span<std::byte> piece);
  // Returns whether the frame has digests that are verified.
  bool is_verified() const {
    return checker_.has_value() && checker_->has_digests();
  }
  // Digests the pieces that were decoded last, each by the decoder of the same
  // index. Digesting several together is faster. Requires: the decoders are
  // distinct.
  static void Digest(std::span<SequenceDecoder* const> decoders,
                     std::span<const std::span<std::byte>> pieces);
  // Fails with kMismatch and the place if the digests differ. Requires: all
  // bytes were decoded and digested.
  Status Finish();

 private:
  SequenceDecoder(const FormatReader& reader, uint32_t row,
                  std::span<const std::byte> frame, DecodeWatch* watch)
      : reader_(&reader), row_(row), frame_(frame), watch_(watch) {}

  const FormatReader* reader_;
  uint32_t row_;
  std::span<const std::byte> frame_;
  DecodeWatch* watch_;
  std::optional<PayloadChecker> checker_;
  uint64_t done_ = 0;
};

// Returns how many bytes of each of `together` payloads to process per round,
// so that all pieces of a round stay in cache. Requires: `together` above 0.
uint64_t PieceBytes(size_t together);

// Bytes of a source that are already in memory and may be changed there.
struct HeldBytes {
  uint64_t offset = 0;
  std::span<std::byte> bytes{};

  // Returns the bytes of a range, or nullopt unless all of them are held.
  std::optional<std::span<std::byte>> Find(uint64_t at, uint64_t length) const;
};

// Reads, decodes and digests the payload of `decoder` from start to end on the
// calling thread, and calls `take`, if set, with each piece. Fails as reading
// and the decoder do.
Status ReadSequence(const ByteSource& source, SequenceDecoder decoder,
                    const std::function<void(std::span<const std::byte> piece)>&
                        take = nullptr);

// Does the same for several payloads, in rounds, and digests the pieces of a
// round together, which is faster for payloads of about the same size. `take`
// also gets the decoder's index. Returns the status of each payload. Held bytes
// are decoded in place, not read.
std::vector<Status> ReadSequences(
    const ByteSource& source, std::span<SequenceDecoder> decoders,
    const std::function<void(size_t i, std::span<const std::byte> piece)>&
        take = nullptr,
    const HeldBytes& held = {});

}  // namespace haulway
