#include "delta/change.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/cursor.h"
#include "delta/frame_reader.h"
#include "haulway/options.h"

namespace haulway::delta {

namespace {

// Decompressed, combined and summed while it is in cache.
constexpr size_t kBlockBytes = 64 * kKiB;
constexpr uint64_t kPositionBytes = 4;

// Returns the failure for a frame whose header states another size.
Status WrongSize(const FrameReader& reader, uint64_t expected) {
  return Status(Code::kCorrupt,
                fmt::format("zstd frame is of another tensor: expected {} "
                            "bytes, found {}",
                            expected, reader.stated_bytes()));
}

void Combine(std::span<const std::byte> mask, std::span<std::byte> bytes) {
  size_t i = 0;
  for (; i + sizeof(uint64_t) <= bytes.size(); i += sizeof(uint64_t)) {
    uint64_t a;
    uint64_t b;
    std::memcpy(&a, mask.data() + i, sizeof(a));
    std::memcpy(&b, bytes.data() + i, sizeof(b));
    b ^= a;
    std::memcpy(bytes.data() + i, &b, sizeof(b));
  }
  for (; i < bytes.size(); ++i) bytes[i] ^= mask[i];
}

Status ApplyXor(std::span<const std::byte> frame, std::span<std::byte> tensor,
                Checksum* checksum) {
  HAULWAY_ASSIGN(FrameReader reader, FrameReader::Open(frame));
  if (reader.Contradicts(tensor.size())) {
    return WrongSize(reader, tensor.size());
  }
  std::vector<std::byte> mask(std::min(tensor.size(), kBlockBytes));
  for (size_t done = 0; done < tensor.size();) {
    const auto block =
        tensor.subspan(done, std::min(kBlockBytes, tensor.size() - done));
    const auto part = std::span(mask).first(block.size());
    HAULWAY_TRY(reader.Fill(part));
    Combine(part, block);
    if (checksum != nullptr) checksum->Update(block);
    done += block.size();
  }
  return reader.Finish();
}

uint32_t NumberAt(std::span<const std::byte> bytes) {
  return ByteCursor(bytes.first(kPositionBytes)).U32();
}

// Positions and values are far from each other in the frame, so it is read
// twice at once: that needs no memory for the positions.
Status ApplyOverwrite(std::span<const std::byte> frame,
                      std::span<std::byte> tensor, Checksum* checksum) {
  HAULWAY_ASSIGN(FrameReader positions, FrameReader::Open(frame));
  HAULWAY_ASSIGN(FrameReader values, FrameReader::Open(frame));
  std::array<std::byte, kPositionBytes> head;
  HAULWAY_TRY(positions.Fill(head));
  const uint64_t count = NumberAt(head);
  if (count > tensor.size()) {
    return Status(Code::kCorrupt,
                  fmt::format("frame changes {} bytes: expected at most {}",
                              count, tensor.size()));
  }
  const uint64_t bytes = kPositionBytes + count * (kPositionBytes + 1);
  if (positions.Contradicts(bytes)) return WrongSize(positions, bytes);
  HAULWAY_TRY(values.Skip(kPositionBytes + count * kPositionBytes));
  constexpr size_t kTogether = kBlockBytes / kPositionBytes;
  std::vector<std::byte> places(std::min<uint64_t>(count, kTogether) *
                                kPositionBytes);
  std::vector<std::byte> news(places.size() / kPositionBytes);
  uint64_t least = 0;
  for (uint64_t done = 0; done < count;) {
    const size_t part = std::min<uint64_t>(kTogether, count - done);
    HAULWAY_TRY(positions.Fill(std::span(places).first(part * kPositionBytes)));
    HAULWAY_TRY(values.Fill(std::span(news).first(part)));
    for (size_t i = 0; i < part; ++i) {
      const uint64_t at =
          NumberAt(std::span(places).subspan(i * kPositionBytes));
      if (at < least || at >= tensor.size()) {
        return Status(Code::kCorrupt,
                      fmt::format("position of a changed byte: expected {} to "
                                  "{}, found {}",
                                  least, tensor.size() - 1, at));
      }
      least = at + 1;
      tensor[at] = news[i];
    }
    done += part;
  }
  HAULWAY_TRY(values.Finish());
  for (size_t done = 0; checksum != nullptr && done < tensor.size();
       done += kBlockBytes) {
    checksum->Update(
        tensor.subspan(done, std::min(kBlockBytes, tensor.size() - done)));
  }
  return Status();
}

}  // namespace

Status ApplyChange(Change change, std::span<const std::byte> frame,
                   std::span<std::byte> tensor, Checksum* checksum) {
  return change == Change::kXor ? ApplyXor(frame, tensor, checksum)
                                : ApplyOverwrite(frame, tensor, checksum);
}

}  // namespace haulway::delta
