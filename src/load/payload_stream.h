// Payloads that are read, decoded and digested piece by piece, while each
// piece is in cache.

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

// A PayloadStream reads one storage from its start to its end, for a
// SequenceDecoder.
// Threads: one at a time.
class PayloadStream {
 public:
  // Reads the frame into `frame`, of its size, and checks it. Requires:
  // SequenceDecoder::Takes(); all that is passed outlives the stream.
  static Result<PayloadStream> Open(const FormatReader& reader,
                                    uint32_t storage, bool verify,
                                    const RequestReader& requests,
                                    LoadProgress* progress,
                                    std::span<std::byte> frame);

  // Returns the size of the pieces to ask for: whole units, at most `largest`
  // if a unit fits.
  Result<uint64_t> Step(uint64_t largest) const {
    return decoder_.Step(largest);
  }
  // Reads, decodes and digests the next bytes, whole units unless they are the
  // last; swaps none.
  Status Next(std::span<std::byte> piece);
  // Next() of each with the piece of its number, but digested together, which
  // is faster for many. Requires: no stream is there twice.
  static Status NextTogether(std::span<PayloadStream* const> streams,
                             std::span<const std::span<std::byte>> pieces);
  // kMismatch, with its place, if the digests differ. Requires: all bytes were
  // read.
  Status Finish() { return decoder_.Finish(); }

 private:
  PayloadStream(SequenceDecoder decoder, const RequestReader& requests)
      : decoder_(std::move(decoder)), requests_(&requests) {}

  SequenceDecoder decoder_;
  const RequestReader* requests_;
};

}  // namespace haulway
