// The tensors of a file in segments, as they are written again.

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "haulway/status.h"
#include "tensorizer/tensorizer_encode.h"
#include "tensorizer/tensorizer_reader.h"

namespace haulway::tensorizer {

// A tensor of the file: what index entry and header say, and its header.
struct SegmentRow {
  TensorFields fields;
  uint64_t data_offset = 0;  // From the start of the data.
  std::vector<std::byte> header;
};

// Row `row` as it is. Requires: the reader's file is in segments.
Result<SegmentRow> ReadSegmentRow(const Reader& reader, uint32_t row);

// Gives it another name. Reads the data, which the digests cover together
// with the name: kMismatch if it is not what the old ones say, kAuth if it is
// encrypted and the reader has no key.
Status Rename(const Reader& reader, uint32_t row, const std::string& name,
              SegmentRow* out);

// Index entries and headers of all rows, one after another.
struct EncodedRows {
  std::vector<std::byte> index;
  std::vector<std::byte> headers;
};
EncodedRows EncodeRows(const std::vector<SegmentRow>& rows, bool tagged);

}  // namespace haulway::tensorizer
