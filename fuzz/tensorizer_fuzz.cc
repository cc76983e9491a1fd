// Property: any bytes given to the codecs of tensorizer files result in facts
// or a typed error. Facts lie within the bytes. Input that strict reading
// accepts is accepted by lenient reading. A parsed crypt block or name is
// encoded to bytes that parse to the same.

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <span>

#include "base/cursor.h"
#include "haulway/checkpoint.h"
#include "tensorizer/tensorizer_crypt_block.h"
#include "tensorizer/tensorizer_format.h"
#include "tensorizer/tensorizer_layout.h"
#include "tensorizer/tensorizer_name.h"

namespace {

using namespace haulway;
using namespace haulway::tensorizer;

void Require(bool holds) {
  if (!holds) abort();
}

void WalkName(const IndexEntry& entry) {
  const auto path = ParseName(entry.name, 100);
  if (!path.ok()) return;
  Require(!path->empty());
  const auto encoded = EncodeName(*path);
  // Escaped ASCII is longer than UTF-8, so a long name may exceed the limit.
  if (!encoded.ok()) return;
  const auto again = ParseName(*encoded, 100);
  Require(again.ok() && *again == *path);
}

bool WalkHeader(std::span<const std::byte> bytes, const IndexEntry& entry,
                const Preamble& preamble, Strictness strictness) {
  if (entry.header_offset > bytes.size()) return false;
  auto header_bytes = bytes.subspan(entry.header_offset);
  const uint64_t length = ByteCursor(header_bytes).U64();
  if (length > header_bytes.size()) return false;
  header_bytes = header_bytes.subspan(0, length);
  const auto header =
      ParseTensorHeader(header_bytes, entry, preamble, strictness);
  if (!header.ok()) return false;
  for (const HashRule rule :
       {HashRule::kValuesZeroed, HashRule::kWithoutHashes}) {
    Require(HashedHeader(header_bytes, *header, rule).size() <= length);
  }
  if (!preamble.encrypted) return true;
  const auto crypt =
      ParseCryptBlock(header->crypt, entry.data_bytes, ParseLimits());
  if (!crypt.ok()) return false;
  const auto encoded = EncodeCryptBlock(*crypt);
  Require(encoded.size() <= header->crypt.size() + 8 + 8);
  return true;
}

// Returns whether the whole file is valid.
bool Walk(std::span<const std::byte> bytes, Strictness strictness) {
  OpenOptions options;
  options.strictness = strictness;
  auto preamble = ParsePreamble(
      bytes.subspan(0, std::min<size_t>(bytes.size(), kPreambleBytes)),
      bytes.size(), options);
  if (!preamble.ok()) {
    Require(!preamble.status().message().empty());
    return false;
  }
  Require(preamble->index_offset <= bytes.size());
  Require(preamble->index_bytes <= bytes.size() - preamble->index_offset);
  const auto index =
      ParseIndex(bytes.subspan(preamble->index_offset, preamble->index_bytes),
                 bytes.size(), options, &*preamble);
  if (!index.ok()) return false;
  Require(index->entries.size() == preamble->count);
  Require(index->end_mark <= bytes.size());
  bool good = true;
  for (const IndexEntry& entry : index->entries) {
    Require(entry.data_offset <= bytes.size());
    Require(entry.data_bytes <= bytes.size() - entry.data_offset);
    Require(index->shape(entry).size() == entry.rank);
    WalkName(entry);
    good = WalkHeader(bytes, entry, *preamble, strictness) && good;
  }
  return good;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  const bool strict = Walk(bytes, Strictness::kStrict);
  const bool lenient = Walk(bytes, Strictness::kLenient);
  Require(!strict || lenient);
  return 0;
}
