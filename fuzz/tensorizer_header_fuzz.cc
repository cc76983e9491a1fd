// Property: any bytes parsed as a tensor header result in facts within it or in
// a typed error. Input that strict reading accepts is accepted by lenient
// reading. A header encoded from the facts parses to the same.

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <vector>

#include "base/cursor.h"
#include "haulway/checkpoint.h"
#include "tensorizer/tensorizer_encode.h"
#include "tensorizer/tensorizer_format.h"
#include "tensorizer/tensorizer_layout.h"

namespace {

using namespace haulway;
using namespace haulway::tensorizer;

void Require(bool holds) {
  if (!holds) abort();
}

// Returns an entry that agrees with the header, so that parsing continues.
IndexEntry EntryOf(std::span<const std::byte> bytes, bool long_dims) {
  IndexEntry entry;
  ByteCursor cursor(bytes);
  cursor.Bytes(8 + 2);
  entry.type = static_cast<TensorType>(cursor.U8());
  const uint16_t name_bytes = cursor.U16();
  entry.name = cursor.Text(name_bytes);
  const size_t at = cursor.position();
  cursor.Bytes(cursor.U8());
  entry.rank = cursor.U8();
  entry.long_dims = long_dims;
  cursor.Bytes(size_t{entry.rank} * (long_dims ? 8 : 4));
  if (cursor.ok()) {
    entry.dtype_and_dims = bytes.subspan(at, cursor.position() - at);
  }
  if (bytes.size() >= 8) {
    entry.data_bytes = ByteCursor(bytes.subspan(bytes.size() - 8)).U64();
  }
  return entry;
}

void CheckEncoding(std::span<const std::byte> bytes, const IndexEntry& entry,
                   const TensorHeader& header, const Preamble& preamble) {
  if (entry.dtype_and_dims.empty()) return;
  // The encoder writes a single SHA-256, after a CRC-32 or alone.
  if (!header.sha256.has_value() || header.hash_block_end == 0) return;
  if (header.crc32.has_value() && header.crc32_value > header.sha256_value) {
    return;
  }
  TensorFields fields;
  fields.name = entry.name;
  ByteCursor cursor(entry.dtype_and_dims);
  fields.dtype = cursor.Text(cursor.U8());
  const uint8_t rank = cursor.U8();
  for (int i = 0; i < rank; ++i) {
    fields.dims.push_back(entry.long_dims ? cursor.U64() : cursor.U32());
  }
  fields.type = entry.type;
  fields.long_dims = entry.long_dims;
  fields.data_bytes = entry.data_bytes;
  HeaderFields rest;
  rest.module_index = header.module_index;
  rest.has_crc32 = header.crc32.has_value();
  if (preamble.encrypted) {
    const auto block = bytes.subspan(header.hash_block_end,
                                     header.crypt_end - header.hash_block_end);
    rest.crypt_block.assign(block.begin(), block.end());
  }
  rest.padding = bytes.size() - 8 - header.crypt_end;
  EncodedHeader encoded(fields, rest);
  const auto covered = HashedHeader(bytes, header, HashRule::kValuesZeroed);
  Require(
      std::ranges::equal(encoded.Covered(HashRule::kValuesZeroed), covered));
  encoded.SetHashes(header.crc32.value_or(0), *header.sha256);
  Require(std::ranges::equal(encoded.bytes(), bytes));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const uint8_t what = data[0];
  const auto bytes = std::as_bytes(std::span(data, size)).subspan(1);
  Preamble preamble;
  preamble.encrypted = (what & 1) != 0;
  IndexEntry entry = EntryOf(bytes, (what & 2) != 0);
  if ((what & 4) != 0) entry.name = "w";
  if ((what & 8) != 0) entry.data_bytes = 12;
  const auto strict =
      ParseTensorHeader(bytes, entry, preamble, Strictness::kStrict);
  const auto lenient =
      ParseTensorHeader(bytes, entry, preamble, Strictness::kLenient);
  Require(!strict.ok() || lenient.ok());
  if (!lenient.ok()) {
    Require(!lenient.status().message().empty());
    return 0;
  }
  Require(lenient->crypt_end + 8 <= bytes.size());
  Require(lenient->hash_block <= lenient->hash_block_end);
  Require(lenient->hash_block_end <= lenient->crypt_end);
  for (const HashRule rule :
       {HashRule::kValuesZeroed, HashRule::kWithoutHashes}) {
    Require(HashedHeader(bytes, *lenient, rule).size() <= bytes.size());
  }
  if (strict.ok()) CheckEncoding(bytes, entry, *strict, preamble);
  return 0;
}
