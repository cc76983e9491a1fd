// Property: any bytes parsed as the index of a tensorizer file result in
// ordered entries within the file, whose names form a tree or cause a typed
// error. Entries are encoded to bytes that parse to the same.

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>
#include <vector>

#include "base/cursor.h"
#include "haulway/checkpoint.h"
#include "tensorizer/tensorizer_dtype.h"
#include "tensorizer/tensorizer_encode.h"
#include "tensorizer/tensorizer_format.h"
#include "tensorizer/tensorizer_layout.h"
#include "tensorizer/tensorizer_tree.h"

namespace {

using namespace haulway;
using namespace haulway::tensorizer;

void Require(bool holds) {
  if (!holds) abort();
}

void CheckEntries(const TensorIndex& index, const Preamble& preamble,
                  uint64_t file_bytes) {
  uint64_t data_end = 0;
  for (const IndexEntry& entry : index.entries) {
    Require(entry.data_offset >= data_end);
    Require(entry.data_bytes <= file_bytes);
    Require(entry.data_offset <= file_bytes - entry.data_bytes);
    Require(entry.meta || entry.data_bytes == entry.nbytes);
    Require(index.shape(entry).size() == entry.rank);
    data_end = entry.data_offset + entry.data_bytes;
  }
  Require(preamble.layout == tensorizer::Layout::kSegments ||
          index.end_mark >= data_end);
}

void CheckEncoding(const TensorIndex& index, const Preamble& preamble,
                   uint64_t file_bytes, const OpenOptions& options) {
  std::vector<std::byte> bytes;
  for (const IndexEntry& entry : index.entries) {
    TensorFields fields;
    fields.name = entry.name;
    const auto dtype = EncodeDType(entry.dtype);
    if (!dtype.ok()) return;
    fields.dtype = *dtype;
    fields.type = entry.type;
    fields.long_dims = entry.long_dims;
    for (const int64_t dim : index.shape(entry)) {
      fields.dims.push_back(static_cast<uint64_t>(dim));
    }
    fields.data_bytes = entry.data_bytes;
    const size_t before = bytes.size();
    EncodeIndexEntry(fields, preamble.tagged,
                     entry.header_offset - preamble.header_start,
                     entry.data_offset - preamble.data_start, &bytes);
    Require(bytes.size() - before == IndexEntryBytes(fields, preamble.tagged));
  }
  Preamble same = preamble;
  same.layout_open = preamble.layout == tensorizer::Layout::kHeadersFirst;
  const auto again = ParseIndex(bytes, file_bytes, options, &same);
  Require(again.ok());
  Require(again->dims == index.dims);
  for (size_t i = 0; i < index.entries.size(); ++i) {
    const IndexEntry& a = index.entries[i];
    const IndexEntry& b = again->entries[i];
    Require(a.name == b.name && a.type == b.type && a.dtype == b.dtype &&
            a.data_offset == b.data_offset && a.nbytes == b.nbytes);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  ByteCursor cursor(std::as_bytes(std::span(data, size)));
  Preamble preamble;
  preamble.version = 1 + cursor.U8() % 5;
  const uint8_t what = cursor.U8();
  preamble.tagged = (what & 1) != 0;
  preamble.layout_open = (what & 2) != 0;
  if ((what & 4) != 0) preamble.layout = tensorizer::Layout::kSegments;
  preamble.count = cursor.U8();
  preamble.data_bytes = cursor.U32();
  const uint64_t file_bytes = cursor.U32();
  const auto bytes = cursor.Bytes(cursor.remaining());
  if (!cursor.ok()) return 0;
  preamble.index_bytes = bytes.size();
  if (preamble.layout == tensorizer::Layout::kSegments) {
    preamble.index_offset = kSegmentIndexStart + 8;
    preamble.header_start = kSegmentBlockBytes;
    preamble.data_start = 2 * kSegmentBlockBytes;
  }
  // ParsePreamble() has the same limits.
  if (preamble.count > bytes.size() / 29) return 0;
  if (preamble.index_offset + bytes.size() > file_bytes) return 0;
  OpenOptions options;
  if ((what & 8) != 0) options.strictness = Strictness::kLenient;
  const auto index = ParseIndex(bytes, file_bytes, options, &preamble);
  if (!index.ok()) {
    Require(!index.status().message().empty());
    return 0;
  }
  CheckEntries(*index, preamble, file_bytes);
  TreeArena arena;
  const auto tree = BuildTree(index->entries, options.limits, &arena);
  Require(tree.ok() || !tree.status().message().empty());
  if (preamble.layout == tensorizer::Layout::kInterleaved) return 0;
  CheckEncoding(*index, preamble, file_bytes, options);
  return 0;
}
