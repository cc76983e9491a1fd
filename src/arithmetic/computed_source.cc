#include "arithmetic/computed_source.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/checked.h"

namespace haulway::arithmetic {

namespace {

constexpr uint64_t kAlignment = 64;

}  // namespace

Result<std::shared_ptr<const ComputedSource>> ComputedSource::Make(
    std::shared_ptr<const FormatReader> reader, std::vector<Weight> weights) {
  uint64_t size = reader->source()->size();
  for (const Weight& weight : weights) {
    if (!CheckedRoundUp(size, kAlignment, &size) ||
        !CheckedAdd(size, weight.nbytes, &size)) {
      return Status(Code::kLimit, "the weights are more than 2^64 bytes");
    }
  }
  return std::shared_ptr<const ComputedSource>(
      new ComputedSource(std::move(reader), std::move(weights)));
}

ComputedSource::ComputedSource(std::shared_ptr<const FormatReader> reader,
                               std::vector<Weight> weights)
    : reader_(std::move(reader)), values_(*reader_, std::move(weights)) {
  size_ = stored().size();
  for (const Weight& weight : values_.weights()) {
    size_ = (size_ + kAlignment - 1) / kAlignment * kAlignment;
    starts_.push_back(size_);
    size_ += weight.nbytes;
  }
}

Status ComputedSource::ReadAt(uint64_t offset, std::span<std::byte> out) const {
  const ReadRequest request{offset, out};
  return ReadMany({&request, 1});
}

Status ComputedSource::ReadMany(std::span<const ReadRequest> requests) const {
  std::vector<ReadRequest> of_stored;
  for (const ReadRequest& request : requests) {
    if (!RangeFits(request.offset, request.out.size(), size_)) {
      return Status(Code::kTruncated, "read ends past the source")
          .At(request.offset);
    }
    const uint64_t end = stored().size();
    const uint64_t before =
        request.offset < end
            ? std::min<uint64_t>(end - request.offset, request.out.size())
            : 0;
    if (before != 0 || request.out.empty()) {
      of_stored.push_back(
          {std::min(request.offset, end), request.out.first(before)});
    }
    HAULWAY_TRY(Compute(request.offset + before, request.out.subspan(before)));
  }
  if (of_stored.empty()) return Status();
  return stored().ReadMany(of_stored);
}

Status ComputedSource::Compute(uint64_t offset,
                               std::span<std::byte> out) const {
  if (out.empty()) return Status();
  const auto behind = std::ranges::upper_bound(starts_, offset);
  auto number = static_cast<uint32_t>(behind - starts_.begin());
  if (number != 0) --number;
  uint64_t done = 0;  // Up to here, `out` is filled.
  for (; number < starts_.size(); ++number) {
    const uint64_t start = starts_[number];
    const uint64_t first = std::max(offset, start);
    const uint64_t stop =
        std::min(offset + out.size(), start + weights()[number].nbytes);
    if (start >= offset + out.size()) break;
    if (first >= stop) continue;
    const uint64_t at = first - offset;
    std::memset(out.data() + done, 0, at - done);
    HAULWAY_TRY(
        values_.Read(number, first - start, out.subspan(at, stop - first)));
    done = at + (stop - first);
  }
  if (done < out.size()) std::memset(out.data() + done, 0, out.size() - done);
  return Status();
}

std::optional<Buffer> ComputedSource::View(uint64_t offset,
                                           uint64_t length) const {
  if (!RangeFits(offset, length, stored().size())) return std::nullopt;
  return stored().View(offset, length);
}

std::optional<FileBytes> ComputedSource::InFile(uint64_t offset,
                                                uint64_t length) const {
  if (!RangeFits(offset, length, stored().size())) return std::nullopt;
  return stored().InFile(offset, length);
}

SourceTraits ComputedSource::Look(std::span<const ByteRange>) const {
  SourceTraits traits = stored().Look({}).Gathered();
  traits.free_hole = kTile * sizeof(float);  // A number costs a whole tile.
  return traits;
}

void ComputedSource::DropCache(uint64_t offset, uint64_t length) const {
  if (!RangeFits(offset, length, stored().size())) return;
  stored().DropCache(offset, length);
}

}  // namespace haulway::arithmetic
