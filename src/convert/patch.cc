#include "convert/patch.h"

#include <algorithm>
#include <ranges>

namespace haulway::convert {

namespace {

// Returns whether the payload already is in the file, at its final place.
bool IsInPlace(const Payload& payload, const ByteSource& file) {
  if (payload.length == 0) return true;
  if (payload.bytes != nullptr || payload.source == nullptr) return false;
  const auto from =
      payload.source->InFile(payload.source_offset, payload.length);
  const auto to = file.InFile(payload.offset, payload.length);
  return from.has_value() && to.has_value() && from->fd == to->fd &&
         from->offset == to->offset;
}

}  // namespace

bool Patch::is_atomic() const {
  if (bytes.empty()) return true;
  const uint64_t end = offset + bytes.size();
  return offset / kSectorBytes == (end - 1) / kSectorBytes;
}

Result<std::optional<Patch>> PatchOf(const Layout& layout,
                                     const ByteSource& file) {
  const std::optional<Patch> none;
  if (layout.size() != file.size() || layout.digesting() != Digesting::kNone ||
      !std::ranges::all_of(layout.payloads(), [&](const Payload& payload) {
        return IsInPlace(payload, file);
      })) {
    return none;
  }
  Patch patch;
  for (size_t i = 0; i < layout.frames().size(); ++i) {
    const Frame& frame = layout.frames()[i];
    std::vector<std::byte> wanted(frame.length);
    std::vector<std::byte> found(frame.length);
    HAULWAY_TRY(layout.EncodeFrame(i, {}, wanted));
    HAULWAY_TRY(file.ReadAt(frame.offset, found));
    const auto first = std::ranges::mismatch(wanted, found).in1;
    if (first == wanted.end()) continue;
    const auto last = std::ranges::mismatch(wanted | std::views::reverse,
                                            found | std::views::reverse)
                          .in1.base();
    if (!patch.bytes.empty()) return none;
    patch.offset = frame.offset + static_cast<uint64_t>(first - wanted.begin());
    patch.bytes.assign(first, last);
    const auto begin = found.begin() + (first - wanted.begin());
    patch.before.assign(begin, begin + (last - first));
  }
  return std::optional(std::move(patch));
}

}  // namespace haulway::convert
