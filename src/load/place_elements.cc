#include "load/place_elements.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "tensor/byte_swap.h"
#include "tensor/cast.h"

namespace haulway {

namespace {

// Number of elements that are gathered, swapped and cast at a time, while they
// are in cache.
constexpr uint64_t kBlock = 512;
constexpr uint64_t kLargestItem = 16;
using Elements = std::array<std::byte, kBlock * kLargestItem>;

// Swaps the bytes of elements that are `stride` elements apart.
void SwapPlaced(std::byte* first, int64_t stride, uint64_t item, uint64_t count,
                uint8_t unit) {
  if (unit == 1) return;
  if (stride == -1) {
    first -= (count - 1) * item;
    stride = 1;
  }
  if (stride == 1 || count == 1) return SwapBytes({first, count * item}, unit);
  for (uint64_t i = 0; i < count; ++i) {
    SwapBytes({first, item}, unit);
    first += stride * static_cast<int64_t>(item);
  }
}

void PlaceRow(const Target& target, const std::byte* from,
              const ElementRow& row, std::byte* out) {
  const uint64_t item = target.grid.item_bytes;
  const auto stride = static_cast<int64_t>(row.stride);
  if (target.from == target.to) {
    CopyRow(from, stride, out, row.out_stride, item, row.count);
    SwapPlaced(out, row.out_stride, item, row.count, target.swap_bytes);
    return;
  }
  const uint64_t cast_item = ItemBytes(target.to);
  const bool is_ready = stride == 1 && target.swap_bytes == 1;
  const bool lands = row.out_stride == 1;
  Elements gathered;
  Elements cast;
  for (uint64_t done = 0; done < row.count; done += kBlock) {
    const uint64_t size = std::min(kBlock, row.count - done);
    const std::byte* source = from + done * row.stride * item;
    std::byte* place = out + static_cast<int64_t>(done) * row.out_stride *
                                 static_cast<int64_t>(cast_item);
    if (!is_ready) {
      CopyRow(source, stride, gathered.data(), 1, item, size);
      SwapBytes(std::span(gathered).first(size * item), target.swap_bytes);
      source = gathered.data();
    }
    CastElements(source, target.from, lands ? place : cast.data(), target.to,
                 size);
    if (!lands) {
      CopyRow(cast.data(), 1, place, row.out_stride, cast_item, size);
    }
  }
}

}  // namespace

void PlaceElements(const Target& target, uint64_t begin, uint64_t end,
                   std::span<const std::byte> bytes, std::span<std::byte> out) {
  const uint64_t item = target.grid.item_bytes;
  const uint64_t out_item =
      target.from == target.to ? item : ItemBytes(target.to);
  if (end <= target.base) return;
  const auto element = [&](uint64_t at) {
    return at <= target.base ? 0 : (at - target.base + item - 1) / item;
  };
  ForEachRow(target.grid, element(begin), element(end),
             [&](const ElementRow& row) {
               PlaceRow(target,
                        bytes.data() + (target.base + row.begin * item - begin),
                        row, out.data() + row.out * out_item);
             });
}

void PlaceZeros(const Target& target, std::span<std::byte> out, bool zeroed) {
  const uint64_t item = ItemBytes(target.to);
  std::array<std::byte, kLargestItem> stored{};
  std::array<std::byte, kLargestItem> cast{};
  CastElements(stored.data(), target.from, cast.data(), target.to, 1);
  if (cast == stored) {
    if (!zeroed) std::ranges::fill(out, std::byte{0});
    return;
  }
  for (size_t i = 0; i < out.size(); i += item) {
    std::memcpy(out.data() + i, cast.data(), item);
  }
}

}  // namespace haulway
