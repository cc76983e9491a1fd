#include "scan/held_ranges.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "haulway/buffer.h"

namespace haulway::scan {

namespace {

using SourcePtr = std::shared_ptr<const ByteSource>;

struct Held {
  uint64_t offset;
  Buffer bytes;
};

class HeldSource : public ByteSource {
 public:
  // Requires: `held` is sorted by offset, and no range begins within another.
  HeldSource(SourcePtr source, std::vector<Held> held)
      : source_(std::move(source)), held_(std::move(held)) {}

  std::string_view name() const override { return source_->name(); }
  uint64_t size() const override { return source_->size(); }

  Status ReadAt(uint64_t offset, std::span<std::byte> out) const override {
    const auto after =
        std::ranges::upper_bound(held_, offset, {}, &Held::offset);
    if (after == held_.begin()) return source_->ReadAt(offset, out);
    const Held& held = *std::prev(after);
    const uint64_t within = offset - held.offset;
    const auto bytes = held.bytes.bytes();
    if (within > bytes.size() || out.size() > bytes.size() - within) {
      return source_->ReadAt(offset, out);
    }
    if (!out.empty()) std::memcpy(out.data(), &bytes[within], out.size());
    return Status();
  }

  SourceTraits Look(std::span<const ByteRange> ranges) const override {
    return source_->Look(ranges);
  }
  std::optional<RemoteStats> remote_stats() const override {
    return source_->remote_stats();
  }

 private:
  const SourcePtr source_;
  const std::vector<Held> held_;
};

}  // namespace

Result<SourcePtr> HoldRanges(SourcePtr source,
                             std::span<const ByteRange> ranges) {
  if (ranges.empty() || !source->Look({}).is_server()) return source;
  std::vector<ByteRange> sorted(ranges.begin(), ranges.end());
  std::ranges::sort(sorted, {}, &ByteRange::offset);
  std::vector<Held> held;
  uint64_t end = 0;
  for (ByteRange range : sorted) {
    if (range.offset < end) {
      const uint64_t shared = std::min(end - range.offset, range.length);
      range.offset += shared;
      range.length -= shared;
    }
    if (range.length == 0) continue;
    end = range.offset + range.length;
    HAULWAY_ASSIGN(Buffer bytes, AllocateBuffer(range.length));
    held.push_back({range.offset, std::move(bytes)});
  }
  std::vector<ReadRequest> requests;
  requests.reserve(held.size());
  for (const Held& one : held) {
    requests.push_back({one.offset, one.bytes.mutable_bytes()});
  }
  HAULWAY_TRY(source->ReadMany(requests));
  return SourcePtr(
      std::make_shared<const HeldSource>(std::move(source), std::move(held)));
}

}  // namespace haulway::scan
