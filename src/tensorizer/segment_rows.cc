#include "tensorizer/segment_rows.h"

#include <span>
#include <string>
#include <utility>

#include "base/cursor.h"
#include "base/digest.h"
#include "base/sha256.h"
#include "decode/sequence_decoder.h"
#include "tensorizer/byte_writer.h"

namespace haulway::tensorizer {

Result<SegmentRow> ReadSegmentRow(const Reader& reader, uint32_t row) {
  const TensorIndex& index = reader.tensor_index();
  const IndexEntry& entry = index.entries[row];
  SegmentRow out;
  out.fields.name = entry.name;
  ByteCursor cursor(entry.dtype_and_dims);
  out.fields.dtype = cursor.Text(cursor.U8());
  out.fields.type = entry.type;
  out.fields.long_dims = entry.long_dims;
  for (const int64_t dim : index.shape(entry)) {
    out.fields.dims.push_back(static_cast<uint64_t>(dim));
  }
  out.fields.data_bytes = entry.data_bytes;
  out.data_offset = entry.data_offset - reader.preamble().data_start;
  HAULWAY_ASSIGN(const Reader::Header header, reader.HeaderOf(row, {}));
  out.header.assign(header.bytes.begin(), header.bytes.end());
  return out;
}

Status Rename(const Reader& reader, uint32_t row, const std::string& name,
              SegmentRow* out) {
  HAULWAY_ASSIGN(const Reader::Header old, reader.HeaderOf(row, {}));
  SegmentRow renamed = *out;
  renamed.fields.name = name;
  HeaderFields fields;
  fields.module_index = old.fields.module_index;
  fields.has_crc32 = old.fields.crc32.has_value();
  if (reader.preamble().encrypted) {
    ByteWriter block(&fields.crypt_block);
    block.U64(old.fields.crypt.size());
    block.Bytes(old.fields.crypt);
  }
  EncodedHeader header(renamed.fields, fields);
  const std::vector<std::byte> covered =
      header.Covered(HashRule::kWithoutHashes);
  Sha256 sha256;
  sha256.Update(covered);
  uint32_t crc32 = Crc32(0, covered);

  HAULWAY_ASSIGN(SequenceDecoder decoder,
                 SequenceDecoder::Open(reader, row, /*verify=*/true, {}));
  HAULWAY_TRY(ReadSequence(*reader.source(), std::move(decoder),
                           [&](std::span<const std::byte> piece) {
                             sha256.Update(piece);
                             crc32 = Crc32(crc32, piece);
                           }));
  header.SetHashes(crc32, sha256.Finish());
  renamed.header.assign(header.bytes().begin(), header.bytes().end());
  *out = std::move(renamed);
  return Status();
}

EncodedRows EncodeRows(const std::vector<SegmentRow>& rows, bool tagged) {
  EncodedRows out;
  for (const SegmentRow& row : rows) {
    EncodeIndexEntry(row.fields, tagged, out.headers.size(), row.data_offset,
                     &out.index);
    out.headers.insert(out.headers.end(), row.header.begin(), row.header.end());
  }
  return out;
}

}  // namespace haulway::tensorizer
