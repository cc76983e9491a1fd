// Writing files of records: a header that holds digests of the payload after
// it, or what is needed to decrypt it, so that it is known last and stands
// first.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "haulway/export.h"
#include "haulway/save.h"
#include "haulway/sink.h"
#include "haulway/status.h"

namespace haulway {

struct FileRecord {
  uint64_t header_offset = 0;
  uint64_t payload_offset = 0;
  uint64_t payload_bytes = 0;
  // The caller's, unchanged while they are written. Null only of an empty one.
  const std::byte* bytes = nullptr;
  uint64_t header_bytes = 0;  // 0: the header ends where the payload begins.

  uint64_t header_size() const {
    return header_bytes != 0 ? header_bytes : payload_offset - header_offset;
  }
};

// Bytes of a file that are known from the start.
struct FixedBytes {
  uint64_t offset;
  std::span<const std::byte> bytes;
};

// A RecordEncoder turns one payload into what is stored, and then its header.
// Not for two threads at once.
class HAULWAY_EXPORT RecordEncoder {
 public:
  virtual ~RecordEncoder() = default;
  // 0 if the payload is stored as it is; else what Encode() takes must be
  // multiples of this, but for the last.
  virtual uint64_t unit_bytes() const = 0;
  // Takes the next piece, of any length.
  virtual void Digest(std::span<const std::byte> piece) = 0;
  // Fills `out` with what is stored for the next piece, as long. Requires:
  // unit_bytes() is not 0.
  virtual void Encode(std::span<const std::byte> piece,
                      std::span<std::byte> out) = 0;
  // After all pieces were digested and encoded. Fills `out`, as long as the
  // header.
  virtual void Finish(std::span<std::byte> out) = 0;
};

// A RecordLayout says what every byte of a file will be.
//
// Threads: every method may be called from many threads at once.
class HAULWAY_EXPORT RecordLayout {
 public:
  virtual ~RecordLayout() = default;
  virtual uint64_t size() const = 0;
  // By offset, not overlapping, as fixed() between and around them. Either all
  // headers stand before their payload, or all before all payloads.
  virtual std::span<const FileRecord> records() const = 0;
  virtual std::span<const FixedBytes> fixed() const = 0;
  // Where the file is cut into two, for MakeSplitSink(); 0: nowhere.
  virtual uint64_t split() const { return 0; }
  // Two encoders of one record store the same bytes.
  virtual std::unique_ptr<RecordEncoder> Start(size_t record) const = 0;
  // Digest() of each encoder with the piece of its number. Requires: all are of
  // this layout.
  virtual void DigestTogether(
      std::span<RecordEncoder* const> encoders,
      std::span<const std::span<const std::byte>> pieces) const {
    for (size_t i = 0; i < encoders.size(); ++i) encoders[i]->Digest(pieces[i]);
  }
  // The end of the file, behind everything else, if it follows from the
  // headers. Requires: an encoder of each record has finished.
  virtual std::vector<std::byte> Tail() const { return {}; }
};

// A sink of two files: what is before `split` goes to `first`, the rest, from
// its byte 0 on, to `second`, which is committed first.
HAULWAY_EXPORT std::unique_ptr<ByteSink> MakeSplitSink(
    std::unique_ptr<ByteSink> first, std::unique_ptr<ByteSink> second,
    uint64_t split);

// Writes the whole file and commits it, many records at once; to an ordered
// sink one by one, each encoded twice. On failure the sink is spent, and
// nothing has become visible.
HAULWAY_EXPORT Result<WriteStats> WriteRecords(
    const RecordLayout& layout, ByteSink& sink,
    const WriteOptions& options = {});

}  // namespace haulway
