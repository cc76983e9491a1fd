// Items: values that are handed over without a pickle, and the envelopes that
// carry them through a Channel. docs/arena.md has the layouts.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "haulway/arena.h"
#include "haulway/buffer.h"
#include "haulway/dtype.h"
#include "haulway/status.h"
#include "haulway/worker.h"

namespace haulway {

enum class EnvelopeKind : uint16_t {
  kPickle = 1,  // A pickle; the parts are its out-of-band buffers.
  kItem = 2,    // An Item, without a pickle.
};

struct EnvelopePart {
  // A part lies at `range` in the arena or, if inlined, in the envelope,
  // `range.offset` bytes after the body.
  enum Flags : uint32_t {
    kInline = 1,
    kBytes = 2,      // The part was a bytes object,
    kByteArray = 4,  // or a bytearray,
    kExact = 8,      // and must become one again, not a view.
  };
  ArenaRange range;
  uint32_t flags = 0;

  bool is_inline() const { return (flags & kInline) != 0; }
};

// An Envelope is the small part of an item: it says how the item's large parts
// lie in an arena, and contains the rest of the item.
struct Envelope {
  EnvelopeKind kind = EnvelopeKind::kPickle;
  uint64_t span = 0;  // Arena bytes that the item takes.
  std::vector<EnvelopePart> parts;
  std::span<const std::byte> body;
  std::span<const std::byte> inlined;  // Everything after the body.
};

// Appends the envelope's bytes up to its body. The caller appends
// `envelope.body` and `envelope.inlined`.
HAULWAY_EXPORT void AppendEnvelopeHead(const Envelope& envelope,
                                       std::vector<std::byte>* out);
// Returns views into `bytes`. Fails with kCorrupt, kTruncated, or kUnsupported
// for another version. Checks that inlined parts lie within the envelope; the
// ArenaReader checks that the others lie in the arena.
HAULWAY_EXPORT Result<Envelope> ParseEnvelope(std::span<const std::byte> bytes);

// A tensor whose elements lie in a part of the item.
struct ItemTensor {
  enum Flags : uint8_t {
    kOfNumpy = 1,  // The library that made it, if known.
    kOfTorch = 2,
    kReadOnly = 4,
    kRequiresGrad = 8,
  };
  uint32_t part = 0;
  DType dtype = DType::kF32;
  uint8_t flags = 0;
  uint64_t offset = 0;  // First element, in the part.
  std::vector<uint64_t> shape;
  std::vector<uint64_t> strides;  // In elements.
};

// An Item is a value that is handed over without a pickle: tensors, numbers,
// text and bytes, in lists, tuples and dicts. Any language can read it; reading
// it runs no code.
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
  uint32_t part = 0;  // For kBytes: the whole part.
  ItemTensor tensor;
  std::vector<Item> keys;   // For a dict; parallel to `items`.
  std::vector<Item> items;  // For a list, tuple or dict.

  // Returns the value of a text key of a dict; null if there is none.
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

// Appends the body of an envelope of kind kItem.
HAULWAY_EXPORT void AppendItem(const Item& item, std::vector<std::byte>* out);
// `part_bytes` are the sizes of the envelope's parts; tensors lie within them.
// `part_bytes` holds the sizes of the envelope's parts; tensors must lie within
// them. Fails with kCorrupt, kTruncated, and kLimit for more than 1,000,000
// values or a depth of more than 100.
HAULWAY_EXPORT Result<Item> ParseItem(std::span<const std::byte> body,
                                      std::span<const uint64_t> part_bytes);

// Sends an item and its parts. Large parts go through the arena if it has room,
// and the rest is part of the message. Parts within a loan are not copied.
// `arena` may be null. Returns false, and sends nothing, if the pass is no
// longer wanted.
HAULWAY_EXPORT Result<bool> SendItem(
    ChannelSender& channel, ArenaWriter* arena, uint32_t epoch,
    const Item& item, std::span<const std::span<const std::byte>> parts);

struct ReceivedItem {
  Item item;
  std::vector<Buffer> parts;  // They keep their memory in the arena.
};
// Opens a message of kind kItem. `arena` may be null if no part can be in one.
// Fails with kUnsafe if the message holds a pickle; otherwise as ParseItem()
// and ArenaReader::View().
HAULWAY_EXPORT Result<ReceivedItem> OpenItem(const Message& message,
                                             ArenaReader* arena);

}  // namespace haulway
