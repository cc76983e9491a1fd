// Re-encodes the tensors of a file in segments.

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "haulway/status.h"
#include "tensorizer/tensorizer_encode.h"
#include "tensorizer/tensorizer_reader.h"

namespace haulway::tensorizer {

// A tensor of the file: the fields that index entry and header share, and the
// header.
struct SegmentRow {
  TensorFields fields;
  uint64_t data_offset = 0;  // Relative to the start of the data.
  std::vector<std::byte> header;
};

// Reads row `row` unchanged. Requires: the reader's file is in segments.
Result<SegmentRow> ReadSegmentRow(const Reader& reader, uint32_t row);

// Renames a tensor. Reads its data, because the digests cover data and name
// together. Fails with kMismatch if the data does not match the old digests,
// and with kAuth if it is encrypted and the reader has no key.
Status Rename(const Reader& reader, uint32_t row, const std::string& name,
              SegmentRow* out);

// Index entries and headers of all rows, concatenated.
struct EncodedRows {
  std::vector<std::byte> index;
  std::vector<std::byte> headers;
};
EncodedRows EncodeRows(const std::vector<SegmentRow>& rows, bool tagged);

}  // namespace haulway::tensorizer
