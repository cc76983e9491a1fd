// Payloads that are read, decoded and digested piece by piece, while each
// piece is in cache.

#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "haulway/format.h"
#include "haulway/status.h"
#include "load/load_progress.h"
#include "load/request_reader.h"
#include "tensor/payload_digest.h"

namespace haulway {

// Whether a storage can be read as a sequence: nothing follows its payload
// that must be checked, and it is raw or decoded where it lies.
bool IsStreamable(const StorageInfo& storage);

// Of how many bytes the pieces are in which an encrypted payload is decoded,
// up to `largest` if that holds a unit; the whole payload if it is one unit.
Result<uint64_t> DecodeStep(const FormatReader& reader, uint32_t storage,
                            std::span<const std::byte> frame, uint64_t largest);

// A PayloadStream reads one storage from its start to its end.
// Threads: one at a time.
class PayloadStream {
 public:
  // Reads the frame into `frame`, of its size, and checks it. Requires:
  // IsStreamable(); all that is passed outlives the stream.
  static Result<PayloadStream> Open(const FormatReader& reader,
                                    uint32_t storage, bool verify,
                                    const RequestReader& requests,
                                    LoadProgress* progress,
                                    std::span<std::byte> frame);

  // Of the pieces to ask for, up to `largest` if that is possible: whole units.
  Result<uint64_t> Step(uint64_t largest) const;
  // Reads, decodes and digests the next bytes, whole units unless they are the
  // last; swaps none.
  Status Next(std::span<std::byte> piece);
  // Next() of each with the piece of its number, but digested together, which
  // is faster for many. Requires: no stream is there twice.
  static Status NextTogether(std::span<PayloadStream* const> streams,
                             std::span<const std::span<std::byte>> pieces);
  // kMismatch if the digests differ. Requires: all bytes were read.
  Status Finish();

 private:
  PayloadStream(const FormatReader& reader, uint32_t storage,
                const RequestReader& requests, LoadProgress* progress,
                std::span<std::byte> frame)
      : reader_(&reader),
        storage_(storage),
        requests_(&requests),
        progress_(progress),
        frame_(frame) {}

  // Reads and decodes, but does not digest.
  Status Fetch(std::span<std::byte> piece);

  const StorageInfo& info() const {
    return reader_->index().storages[storage_];
  }

  const FormatReader* reader_;
  uint32_t storage_;
  const RequestReader* requests_;
  LoadProgress* progress_;
  std::span<std::byte> frame_;
  std::optional<PayloadChecker> checker_;
  uint64_t done_ = 0;
};

}  // namespace haulway
