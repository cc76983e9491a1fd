// Design: a value is one byte for its kind, followed by its content,
// little-endian. Containers are a count followed by their values; tensors are
// the number of a part with offset, shape and strides. Parsing walks the body
// once, with a cursor that cannot leave it. Depth and the number of values are
// limited, each value takes at least a byte, and memory grows only with what
// has been read. Every tensor's extent is checked to lie in its part.
//
// Not used: pickle, which is specific to Python and runs code; MessagePack and
// similar formats, which have neither tensors outside the message nor tuples,
// so every value would need a wrapper.

#include <fmt/format.h>

#include <utility>

#include "arena/append.h"
#include "base/checked.h"
#include "base/cursor.h"
#include "haulway/items.h"

namespace haulway {

namespace {

constexpr uint32_t kMostValues = 1'000'000;
constexpr int kDeepest = 100;
constexpr uint8_t kMostDimensions = 64;
constexpr uint8_t kTensorFlags = ItemTensor::kOfNumpy | ItemTensor::kOfTorch |
                                 ItemTensor::kReadOnly |
                                 ItemTensor::kRequiresGrad;

void AppendText(std::string_view text, std::vector<std::byte>* out) {
  const auto bytes = std::as_bytes(std::span(text));
  out->insert(out->end(), bytes.begin(), bytes.end());
}

void AppendTensor(const ItemTensor& tensor, std::vector<std::byte>* out) {
  const std::string_view name = Name(tensor.dtype);
  Append(tensor.part, out);
  Append(tensor.offset, out);
  Append(tensor.flags, out);
  Append(static_cast<uint8_t>(tensor.shape.size()), out);
  Append(static_cast<uint8_t>(name.size()), out);
  AppendText(name, out);
  for (const uint64_t size : tensor.shape) Append(size, out);
  for (const uint64_t stride : tensor.strides) Append(stride, out);
}

// Parses one body. Failures of the cursor become a status at the end.
class Reader {
 public:
  Reader(std::span<const std::byte> body, std::span<const uint64_t> parts)
      : cursor_(body), parts_(parts) {}

  Result<Item> Read() {
    Item item;
    HAULWAY_TRY(ReadValue(0, &item));
    if (cursor_.remaining() != 0) return Bad("bytes after the item");
    return item;
  }

 private:
  Status Bad(std::string_view what) const {
    return Status(Code::kCorrupt, what).At(cursor_.position()).In("item");
  }
  Status Ended() const {
    return Status(Code::kTruncated, "item ends early")
        .At(cursor_.position())
        .In("item");
  }

  Status ReadValue(int depth, Item* item) {
    if (depth > kDeepest || ++values_ > kMostValues) {
      return Status(Code::kLimit,
                    fmt::format("item of more than {} values, or {} deep",
                                kMostValues, kDeepest));
    }
    const uint8_t kind = cursor_.U8();
    if (!cursor_.ok()) return Ended();
    item->kind = static_cast<Item::Kind>(kind);
    switch (item->kind) {
      case Item::Kind::kNone:
      case Item::Kind::kFalse:
      case Item::Kind::kTrue:
        return Status();
      case Item::Kind::kInteger:
        item->integer = static_cast<int64_t>(cursor_.U64());
        break;
      case Item::Kind::kFloat:
        item->number = std::bit_cast<double>(cursor_.U64());
        break;
      case Item::Kind::kText:
        item->text = cursor_.Text(cursor_.U32());
        break;
      case Item::Kind::kBytes:
        item->part = cursor_.U32();
        if (!cursor_.ok()) return Ended();
        return CheckPart(item->part);
      case Item::Kind::kList:
      case Item::Kind::kTuple:
      case Item::Kind::kDict:
        return ReadValues(depth, item);
      case Item::Kind::kTensor:
        return ReadTensor(&item->tensor);
      default:
        return Bad(fmt::format("unknown kind of value {}", kind));
    }
    return cursor_.ok() ? Status() : Ended();
  }

  Status ReadValues(int depth, Item* item) {
    const uint32_t count = cursor_.U32();
    if (!cursor_.ok()) return Ended();
    const bool is_dict = item->kind == Item::Kind::kDict;
    // Each value takes at least a byte. Nothing is reserved for values not read
    // yet.
    if (count > cursor_.remaining()) return Ended();
    for (uint32_t i = 0; i < count; ++i) {
      if (is_dict) {
        HAULWAY_TRY(ReadValue(depth + 1, &item->keys.emplace_back()));
        const Item::Kind key = item->keys.back().kind;
        if (key != Item::Kind::kText && key != Item::Kind::kInteger) {
          return Bad("key that is neither text nor an integer");
        }
      }
      HAULWAY_TRY(ReadValue(depth + 1, &item->items.emplace_back()));
    }
    return Status();
  }

  Status CheckPart(uint32_t part) const {
    if (part < parts_.size()) return Status();
    return Bad(fmt::format("part {} of {}", part, parts_.size()));
  }

  Status ReadTensor(ItemTensor* tensor) {
    tensor->part = cursor_.U32();
    tensor->offset = cursor_.U64();
    tensor->flags = cursor_.U8();
    const uint8_t rank = cursor_.U8();
    const std::string_view name = cursor_.Text(cursor_.U8());
    if (!cursor_.ok()) return Ended();
    HAULWAY_TRY(CheckPart(tensor->part));
    const auto dtype = DTypeFromName(name);
    if (!dtype.has_value()) return Bad("unknown dtype");
    if (rank > kMostDimensions || (tensor->flags & ~kTensorFlags) != 0) {
      return Bad("tensor of unknown flags, or too many dimensions");
    }
    tensor->dtype = *dtype;
    for (auto* sizes : {&tensor->shape, &tensor->strides}) {
      for (uint8_t i = 0; i < rank; ++i) sizes->push_back(cursor_.U64());
    }
    if (!cursor_.ok()) return Ended();
    return CheckExtent(*tensor);
  }

  // Checks that all elements lie in the part.
  Status CheckExtent(const ItemTensor& tensor) const {
    const uint64_t room = parts_[tensor.part];
    uint64_t last = 0;  // Offset of the last element, relative to the first.
    uint64_t count = 1;
    for (size_t i = 0; i < tensor.shape.size(); ++i) {
      uint64_t reach = 0;
      if (tensor.shape[i] == 0) {
        count = 0;
        continue;
      }
      if (!CheckedMultiply(tensor.shape[i] - 1, tensor.strides[i], &reach) ||
          !CheckedAdd(last, reach, &last) ||
          (count != 0 && !CheckedMultiply(count, tensor.shape[i], &count))) {
        return Bad("tensor larger than any memory");
      }
    }
    uint64_t bytes = 0;
    if (count != 0 &&
        (!CheckedAdd(last, uint64_t{1}, &bytes) ||
         !CheckedMultiply(bytes, ItemBytes(tensor.dtype), &bytes))) {
      return Bad("tensor larger than any memory");
    }
    if (!RangeFits(tensor.offset, bytes, room)) {
      return Bad(fmt::format("tensor of {} bytes at {} in a part of {}", bytes,
                             tensor.offset, room));
    }
    return Status();
  }

  ByteCursor cursor_;
  std::span<const uint64_t> parts_;
  uint32_t values_ = 0;
};

}  // namespace

const Item* Item::Find(std::string_view key) const {
  for (size_t i = 0; i < keys.size(); ++i) {
    if (keys[i].kind == Kind::kText && keys[i].text == key) return &items[i];
  }
  return nullptr;
}

Item Item::Integer(int64_t value) {
  Item item;
  item.kind = Kind::kInteger;
  item.integer = value;
  return item;
}

Item Item::Text(std::string_view value) {
  Item item;
  item.kind = Kind::kText;
  item.text = value;
  return item;
}

Item Item::List(std::vector<Item> items) {
  Item item;
  item.kind = Kind::kList;
  item.items = std::move(items);
  return item;
}

Item Item::Dict(std::vector<std::pair<std::string, Item>> items) {
  Item item;
  item.kind = Kind::kDict;
  for (auto& [key, value] : items) {
    item.keys.push_back(Text(key));
    item.items.push_back(std::move(value));
  }
  return item;
}

Item Item::Tensor(uint32_t part, DType dtype, std::vector<uint64_t> shape) {
  Item item;
  item.kind = Kind::kTensor;
  item.tensor.part = part;
  item.tensor.dtype = dtype;
  item.tensor.strides.resize(shape.size());
  uint64_t stride = 1;
  for (size_t i = shape.size(); i > 0; --i) {
    item.tensor.strides[i - 1] = stride;
    stride *= shape[i - 1];
  }
  item.tensor.shape = std::move(shape);
  return item;
}

void AppendItem(const Item& item, std::vector<std::byte>* out) {
  Append(static_cast<uint8_t>(item.kind), out);
  switch (item.kind) {
    case Item::Kind::kNone:
    case Item::Kind::kFalse:
    case Item::Kind::kTrue:
      return;
    case Item::Kind::kInteger:
      return Append(item.integer, out);
    case Item::Kind::kFloat:
      return Append(item.number, out);
    case Item::Kind::kText:
      Append(static_cast<uint32_t>(item.text.size()), out);
      return AppendText(item.text, out);
    case Item::Kind::kBytes:
      return Append(item.part, out);
    case Item::Kind::kTensor:
      return AppendTensor(item.tensor, out);
    case Item::Kind::kList:
    case Item::Kind::kTuple:
    case Item::Kind::kDict:
      break;
  }
  Append(static_cast<uint32_t>(item.items.size()), out);
  for (size_t i = 0; i < item.items.size(); ++i) {
    if (item.kind == Item::Kind::kDict) AppendItem(item.keys[i], out);
    AppendItem(item.items[i], out);
  }
}

Result<Item> ParseItem(std::span<const std::byte> body,
                       std::span<const uint64_t> part_bytes) {
  return Reader(body, part_bytes).Read();
}

}  // namespace haulway
