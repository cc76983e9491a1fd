// An Item is what is handed over without a pickle: tensors, numbers, text and
// bytes, in lists, tuples and dicts. Any language can read it; reading it runs
// nothing. docs/arena.md has the layout.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "haulway/arena.h"
#include "haulway/dtype.h"
#include "haulway/envelope.h"
#include "haulway/export.h"
#include "haulway/status.h"
#include "haulway/worker.h"

namespace haulway {

// A tensor's elements lie in a part of the item.
struct ItemTensor {
  enum Flags : uint8_t {
    kOfNumpy = 1,  // What it was made by, if that is known.
    kOfTorch = 2,
    kReadOnly = 4,
    kRequiresGrad = 8,
  };
  uint32_t part = 0;
  DType dtype = DType::kF32;
  uint8_t flags = 0;
  uint64_t offset = 0;  // Of the first element, in the part.
  std::vector<uint64_t> shape;
  std::vector<uint64_t> strides;  // In elements.
};

struct Item {
  enum class Kind : uint8_t {
    kNone = 0,
    kFalse = 1,
    kTrue = 2,
    kInteger = 3,
    kFloat = 4,
    kText = 5,
    kBytes = 6,
    kList = 7,
    kTuple = 8,
    kDict = 9,
    kTensor = 10,
  };
  Kind kind = Kind::kNone;
  int64_t integer = 0;
  double number = 0;
  std::string text;   // UTF-8.
  uint32_t part = 0;  // Of bytes: all of it.
  ItemTensor tensor;
  std::vector<Item> keys;   // Of a dict; parallel to `items`.
  std::vector<Item> items;  // Of a list, tuple or dict.

  // The value under a text key of a dict; null if there is none.
  HAULWAY_EXPORT const Item* Find(std::string_view key) const;

  HAULWAY_EXPORT static Item Integer(int64_t value);
  HAULWAY_EXPORT static Item Text(std::string_view value);
  HAULWAY_EXPORT static Item List(std::vector<Item> items);
  HAULWAY_EXPORT static Item Dict(
      std::vector<std::pair<std::string, Item>> items);
  // A dense tensor in row-major order that fills a part.
  HAULWAY_EXPORT static Item Tensor(uint32_t part, DType dtype,
                                    std::vector<uint64_t> shape);
};

// The body of an envelope of kind kItem.
HAULWAY_EXPORT void AppendItem(const Item& item, std::vector<std::byte>* out);
// `part_bytes` are the sizes of the envelope's parts; tensors lie within them.
// kCorrupt, kTruncated, kLimit: more than 1,000,000 values, or 100 deep.
HAULWAY_EXPORT Result<Item> ParseItem(std::span<const std::byte> body,
                                      std::span<const uint64_t> part_bytes);

// Sends an item and its parts: through the arena what is large and has room
// there, all else along with it. Parts within a loan are not copied. `arena`
// may be null. False, with nothing sent, if the pass is not wanted any more.
HAULWAY_EXPORT Result<bool> SendItem(
    ChannelSender& channel, ArenaWriter* arena, uint32_t epoch,
    const Item& item, std::span<const std::span<const std::byte>> parts);

struct ReceivedItem {
  Item item;
  std::vector<Buffer> parts;  // Hold their memory in the arena.
};
// What is in a message of kind kItem. `arena` may be null if nothing can be
// in one. kUnsafe if it holds a pickle; else as ParseItem() and
// ArenaReader::View().
HAULWAY_EXPORT Result<ReceivedItem> OpenItem(const Message& message,
                                             ArenaReader* arena);

}  // namespace haulway
