// Payloads that come from their start to their end, piece by piece.

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

// A SequenceDecoder decodes and digests each piece while it is in cache.
// Threads: one at a time.
class SequenceDecoder {
 public:
  // Whether it can take a storage: nothing follows its payload that must be
  // checked first, nothing is turned around, and it is decoded where it lies
  // if at all.
  static bool Takes(const StorageInfo& storage);

  // Checks the frame, which stands before the payload. Requires: Takes(), or
  // nothing is stored; all that is passed outlives it. Fails as the reader
  // does.
  static Result<SequenceDecoder> Open(const FormatReader& reader, uint32_t row,
                                      bool verify,
                                      std::span<const std::byte> frame,
                                      DecodeWatch* watch = DecodeWatch::None());

  const StorageInfo& info() const { return reader_->index().storages[row_]; }
  // How far it is in the payload.
  uint64_t done() const { return done_; }

  // Returns the size of the pieces to bring: whole units, at most `largest` if
  // a unit fits.
  Result<uint64_t> Step(uint64_t largest) const;
  // Decodes the next bytes, where they are: whole units, unless they are the
  // last.
  Status Decode(std::span<std::byte> piece);
  // Whether the frame has digests, and they are compared.
  bool is_verified() const {
    return checker_.has_value() && checker_->has_digests();
  }
  // Digests what was decoded last, of each the piece of its number; together
  // is faster for many. Requires: no decoder is there twice.
  static void Digest(std::span<SequenceDecoder* const> decoders,
                     std::span<const std::span<std::byte>> pieces);
  // kMismatch, with its place, if the digests differ. Requires: all bytes were
  // decoded and digested.
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

// How much of each of `together` payloads is brought before it is the turn of
// the next, so that one digests what the others decoded while all is in cache.
// Requires: there is one.
uint64_t PieceBytes(size_t together);

// Bytes of a source that are in memory already, to be changed there.
struct HeldBytes {
  uint64_t offset = 0;
  std::span<std::byte> bytes{};

  // Those of a range; none unless all of it is held.
  std::optional<std::span<std::byte>> Find(uint64_t at, uint64_t length) const;
};

// Reads the payload of `decoder` from its start to its end on the calling
// thread, a piece after another, decodes and digests each, and calls `take`
// with it, if that is set. Fails as reading does, and as the decoder.
Status ReadSequence(const ByteSource& source, SequenceDecoder decoder,
                    const std::function<void(std::span<const std::byte> piece)>&
                        take = nullptr);

// Reads several so, in turn, and digests what a turn brought together, which is
// faster for payloads of about the same size. Calls `take` with the decoder's
// number too. Gives of each what reading it alone would. What is held is
// decoded where it is, not read.
std::vector<Status> ReadSequences(
    const ByteSource& source, std::span<SequenceDecoder> decoders,
    const std::function<void(size_t i, std::span<const std::byte> piece)>&
        take = nullptr,
    const HeldBytes& held = {});

}  // namespace haulway
