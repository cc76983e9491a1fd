// Reads, decodes and digests payloads piece by piece, while each piece is in
// cache.

#pragma once

#include <cstdint>
#include <span>
#include <utility>

#include "decode/sequence_decoder.h"
#include "haulway/format.h"
#include "haulway/status.h"
#include "load/load_progress.h"
#include "load/request_reader.h"

namespace haulway {

// A PayloadStream reads one storage from start to end for a SequenceDecoder.
// Threads: one at a time.
class PayloadStream {
 public:
  // Reads the part of the frame before the payload into `frame`, and checks it.
  // Requires: SequenceDecoder::Takes(); `frame` has that part's size; all
  // arguments outlive the stream.
  static Result<PayloadStream> Open(const FormatReader& reader,
                                    uint32_t storage, bool verify,
                                    const RequestReader& requests,
                                    LoadProgress* progress,
                                    std::span<std::byte> frame);

  // Returns the piece size to use: a multiple of the encoding's unit, at most
  // `largest` if one unit fits.
  Result<uint64_t> Step(uint64_t largest) const {
    return decoder_.Step(largest);
  }
  // Reads, decodes and digests the next bytes. Does not swap bytes. Requires:
  // whole units, except for the last piece.
  Status Next(std::span<std::byte> piece);
  // Calls Next() on each stream with the piece of the same index, but digests
  // the pieces together, which is faster for several streams. Requires: the
  // streams are distinct.
  static Status NextTogether(std::span<PayloadStream* const> streams,
                             std::span<const std::span<std::byte>> pieces);
  // Fails with kMismatch and the place if the digests differ. Requires: all
  // bytes were read.
  Status Finish() { return decoder_.Finish(); }

 private:
  PayloadStream(SequenceDecoder decoder, const RequestReader& requests)
      : decoder_(std::move(decoder)), requests_(&requests) {}

  SequenceDecoder decoder_;
  const RequestReader* requests_;
};

}  // namespace haulway
