// Property: any bytes as the frame of a changed tensor change the tensor or
// result in a typed error, as libzstd's decompression in one piece says; frames
// that libzstd does not decode for us may also be refused where libzstd is
// lenient. A mask that is combined twice restores the tensor.
//
// Input: the encoding and the tensor's size in three bytes, then the frame.

#include <zstd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <vector>

#include "delta/change.h"
#include "delta/mask_reader.h"

namespace {

using haulway::delta::ApplyChange;
using haulway::delta::Change;
using haulway::delta::Checksum;
using haulway::delta::ChecksumKind;

using Bytes = std::vector<std::byte>;

// Returns the content of a frame that is all of the input and holds at most
// `most` bytes; empty if it is not.
Bytes ContentOf(std::span<const std::byte> frame, size_t most) {
  if (ZSTD_findFrameCompressedSize(frame.data(), frame.size()) !=
      frame.size()) {
    return {};
  }
  Bytes content(most + 1);
  const size_t size = ZSTD_decompress(content.data(), content.size(),
                                      frame.data(), frame.size());
  if (ZSTD_isError(size) || size > most) return {};
  content.resize(size);
  return content;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 3) return 0;
  const Change change = data[0] % 2 == 0 ? Change::kXor : Change::kOverwrite;
  const size_t bytes = 1 + (data[1] | size_t{data[2]} << 8);
  const auto frame = std::as_bytes(std::span(data, size)).subspan(3);
  Bytes before(bytes);
  for (size_t i = 0; i < bytes; ++i) before[i] = static_cast<std::byte>(i);
  Bytes after = before;
  Checksum sum(ChecksumKind::kXxh3);
  const bool is_changed = ApplyChange(change, frame, after, &sum).ok();
  if (change == Change::kXor) {
    const Bytes content = ContentOf(frame, bytes);
    const bool is_content = content.size() == bytes;
    if (is_changed && !is_content) abort();
    const bool may_refuse = haulway::delta::MaskReader::IsFastFor(frame);
    if (!is_changed && is_content && !may_refuse) abort();
    for (size_t i = 0; is_changed && i < bytes; ++i) {
      if (after[i] != (before[i] ^ content[i])) abort();
    }
  }
  if (!is_changed) return 0;
  Checksum expected(ChecksumKind::kXxh3);
  expected.Update(after);
  if (sum.Finish() != expected.Finish()) abort();
  if (!ApplyChange(change, frame, after, nullptr).ok()) abort();
  if (change == Change::kXor && after != before) abort();
  return 0;
}
