// Property: any bytes as a frame that changes are decoded from combine with the
// tensor or result in a typed error. What is accepted, libzstd accepts with the
// same content. Frames that libzstd makes of the same bytes are accepted. What
// we encode, both decode to the same bytes.
//
// Input: the tensor's size in two bytes, a level, then the frame. To encode, it
// is taken as a mask, and as pairs of a gap and a byte.

#include <zstd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <vector>

#include "delta/change_writer.h"
#include "delta/mask_reader.h"

namespace {

using haulway::delta::BlockDecoder;
using haulway::delta::Change;
using haulway::delta::MakeChange;
using haulway::delta::MaskReader;
using Bytes = std::vector<std::byte>;

// Combines a frame with a tensor of zeros. Returns whether it is accepted.
bool Combine(std::span<const std::byte> frame, Bytes* tensor) {
  auto reader = MaskReader::Open(frame, tensor->size());
  if (!reader.ok()) return false;
  for (size_t at = 0; at < tensor->size();) {
    const auto rest = std::span(*tensor).subspan(at);
    const auto step = reader->Combine(
        rest.first(std::min(rest.size(), BlockDecoder::kMostBytes)));
    if (!step.ok()) return false;
    if (step->bytes == 0) abort();
    at += step->bytes;
  }
  return reader->Finish().ok();
}

// Encodes a mask, and decodes it.
void Encode(const Bytes& mask) {
  const Bytes zeros(mask.size());
  if (mask == zeros) return;
  const auto frame = MakeChange(Change::kXor, zeros, mask);
  if (!frame.ok()) abort();
  Bytes decoded(mask.size());
  const size_t made = ZSTD_decompress(decoded.data(), decoded.size(),
                                      frame->data(), frame->size());
  if (ZSTD_isError(made) || made != mask.size() || decoded != mask) abort();
  decoded = zeros;
  if (!Combine(*frame, &decoded) || decoded != mask) abort();
}

// Returns a mask of bytes that are each after a gap.
Bytes WithGaps(std::span<const std::byte> pairs) {
  constexpr size_t kMostBytes = size_t{1} << 20;
  Bytes mask;
  for (size_t i = 0; i + 1 < pairs.size() && mask.size() < kMostBytes; i += 2) {
    const auto gap = std::to_integer<size_t>(pairs[i]);
    mask.resize(mask.size() + (gap < 250 ? gap : gap << (gap - 245)));
    mask.push_back(pairs[i + 1]);
  }
  return mask;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 4) return 0;
  const size_t bytes = 1 + (data[0] | size_t{data[1]} << 8) * 5;
  const auto input = std::as_bytes(std::span(data, size)).subspan(3);
  Bytes tensor(bytes);
  if (Combine(input, &tensor)) {
    Bytes expected(bytes);
    const size_t made = ZSTD_decompress(expected.data(), expected.size(),
                                        input.data(), input.size());
    if (ZSTD_isError(made) || made != bytes || tensor != expected) abort();
  }
  Bytes frame(ZSTD_compressBound(input.size()));
  frame.resize(ZSTD_compress(frame.data(), frame.size(), input.data(),
                             input.size(), data[2] % 23));
  tensor.assign(input.size(), std::byte{0});
  if (!Combine(frame, &tensor)) abort();
  if (!std::ranges::equal(tensor, input)) abort();
  Encode(tensor);
  Encode(WithGaps(input));
  return 0;
}
