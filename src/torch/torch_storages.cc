#include "torch/torch_storages.h"

#include <fmt/format.h>

#include "base/checked.h"
#include "base/cursor.h"
#include "base/text.h"
#include "pickle/pickle_globals.h"

namespace haulway::torch {

namespace {

Status WrongId(std::string_view what) {
  return Status(Code::kCorrupt, fmt::format("persistent id {}", what));
}

bool IsText(const Value& value) {
  return value.is(Kind::kString) || value.is(Kind::kRawString);
}

// Returns the size of `count` elements in bytes. Fails unless `count` is a
// non-negative integer.
Result<uint64_t> Bytes(const Value& count, DType dtype) {
  uint64_t bytes = 0;
  if (!count.is(Kind::kInt) || count.integer() < 0 ||
      !CheckedMultiply(static_cast<uint64_t>(count.integer()), ItemBytes(dtype),
                       &bytes)) {
    return WrongId("has a number of elements that is none, or overflows");
  }
  return bytes;
}

}  // namespace

Result<StorageId> ParseStorageId(const Value& persistent_id, bool legacy,
                                 TreeArena* arena) {
  if (!persistent_id.is(Kind::kTuple)) return WrongId("is not a tuple");
  const std::span<const Value> items = persistent_id.sequence().items();
  if (items.empty() || !IsText(items[0])) return WrongId("has no type");
  if (items[0].text() != "storage") {
    return Status(Code::kUnsafe,
                  fmt::format("persistent id of type {} is not allowed: "
                              "expected 'storage'",
                              Quote(items[0].text())));
  }
  if (items.size() != 5 && !(legacy && items.size() == 6)) {
    return WrongId(fmt::format("has {} items: expected 5", items.size()));
  }
  if (!items[1].is(Kind::kGlobal)) return WrongId("has no storage type");
  StorageId id;
  switch (KindOf(items[1].global())) {
    case GlobalKind::kStorage:
    case GlobalKind::kCudaStorage:
      id.dtype = DTypeOf(items[1].global());
      break;
    case GlobalKind::kUntypedStorage:
      id.untyped = true;
      break;
    default:
      return WrongId(
          fmt::format("has {} as storage type", Quote(items[1].global().name)));
  }
  const bool is_number = items[2].is(Kind::kInt) && items[2].integer() >= 0;
  if (!IsText(items[2]) && !is_number) {
    return WrongId("has a key that is not a string");
  }
  if (!IsText(items[3])) return WrongId("has a location that is not a string");

  id.key = is_number ? arena->Copy(fmt::format("{}", items[2].integer()))
                     : items[2].text();
  id.location = items[3].text();
  HAULWAY_ASSIGN(id.nbytes, Bytes(items[4], id.dtype));
  if (items.size() == 6 && !items[5].is(Kind::kNone)) {
    // View metadata is (key, offset, size), in elements.
    if (!items[5].is(Kind::kTuple) || items[5].sequence().size != 3 ||
        !IsText(items[5].sequence().data[0])) {
      return WrongId("has view metadata that is not (key, offset, size)");
    }
    const Value* view = items[5].sequence().data;
    id.is_view = true;
    id.view_key = view[0].text();
    HAULWAY_ASSIGN(id.view_offset, Bytes(view[1], id.dtype));
    HAULWAY_ASSIGN(id.view_bytes, Bytes(view[2], id.dtype));
  }
  return id;
}

Result<StorageUse> StorageTable::Use(const StorageId& id) {
  const auto next = static_cast<uint32_t>(index_.storages.size());
  uint32_t row = by_key_.Add(id.key, next, KeyOf{index_});
  if (row == NameIndex::kNone) {
    row = next;
    StorageInfo& storage = index_.storages.emplace_back();
    storage.key = id.key;
    storage.location = id.location;
    storage.dtype = id.dtype;
    storage.untyped = id.untyped;
    storage.nbytes = id.nbytes;
  } else if (index_.storages[row].nbytes != id.nbytes) {
    return Status(
        Code::kCorrupt,
        fmt::format("storage {} changes its size: expected {} bytes, "
                    "found {}",
                    Quote(id.key), index_.storages[row].nbytes, id.nbytes));
  }
  if (!id.is_view) return StorageUse{row, id.dtype, 0, id.nbytes};
  if (!RangeFits(id.view_offset, id.view_bytes, id.nbytes)) {
    return Status(Code::kCorrupt,
                  fmt::format("view {} leaves its storage {}",
                              Quote(id.view_key), Quote(id.key)));
  }
  return StorageUse{row, id.dtype, id.view_offset, id.view_bytes};
}

Status CheckElements(const StorageInfo& info,
                     std::span<const std::byte> before) {
  const uint64_t expected = info.nbytes / ItemBytes(info.dtype);
  const uint64_t found = ByteCursor(before).U64();
  if (found == expected) return Status();
  return Status(Code::kCorrupt,
                fmt::format("storage {} has the wrong number of elements: "
                            "expected {}, found {}",
                            Quote(info.key), expected, found))
      .At(info.frame_offset);
}

}  // namespace haulway::torch
