// Property: any bytes as an item that extensions of torch's writer compressed
// decode to at most the limit, or result in a typed error. The bytes, and
// whether there is an error, do not depend on the pieces in which they are
// read, and a cursor that reads ranges in any order finds the same bytes.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "dcp/dcp_item.h"

namespace {

using haulway::MakeMemorySource;
using haulway::Result;
using haulway::dcp::ItemCursor;
using haulway::dcp::ItemDecoder;
using haulway::dcp::MostDecoded;
using haulway::dcp::StoredItem;

constexpr MostDecoded kMost = {.bytes = 1 << 20};
constexpr std::string_view kNames[] = {"stream.zstd/1", "stream.zstd/1",
                                       "stream.zstd/1"};

// Returns the decoded bytes; nullopt after a failure.
std::optional<std::vector<std::byte>> Decode(
    const std::shared_ptr<const haulway::ByteSource>& file,
    const StoredItem& item, size_t piece) {
  auto decoder = ItemDecoder::Open(file, item, kMost);
  if (!decoder.ok()) return std::nullopt;
  std::vector<std::byte> all;
  std::vector<std::byte> part(piece);
  while (true) {
    const Result<size_t> read = decoder->Read(part);
    if (!read.ok()) return std::nullopt;
    all.insert(all.end(), part.begin(), part.begin() + *read);
    if (all.size() > kMost.bytes) abort();
    if (*read < part.size()) return all;
  }
}

void CheckRanges(const std::shared_ptr<const haulway::ByteSource>& file,
                 const StoredItem& item, std::span<const std::byte> decoded) {
  ItemCursor cursor(file, item, kMost);
  std::vector<std::byte> part(decoded.size() / 3 + 1);
  for (const size_t at : {decoded.size() / 2, size_t{0}, decoded.size() / 3}) {
    const auto out =
        std::span(part).first(std::min(part.size(), decoded.size() - at));
    if (!cursor.ReadAt(at, out, /*keeps=*/true).ok()) abort();
    if (!std::ranges::equal(out, decoded.subspan(at, out.size()))) abort();
  }
  const Result<uint64_t> size = cursor.ReadToEnd();
  if (!size.ok() || *size != decoded.size()) abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const size_t transforms = 1 + data[0] % std::size(kNames);
  const auto bytes = std::as_bytes(std::span(data, size).subspan(1));
  const auto file = MakeMemorySource(bytes);
  const StoredItem item{0, 0, bytes.size(),
                        std::span(kNames).first(transforms)};
  const auto whole = Decode(file, item, kMost.bytes + 1);
  const auto pieces = Decode(file, item, 777);
  if (whole != pieces) abort();
  if (whole.has_value()) CheckRanges(file, item, *whole);
  return 0;
}
