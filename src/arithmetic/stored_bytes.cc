#include "arithmetic/stored_bytes.h"

#include <optional>
#include <utility>

#include "decode/encoding_traits.h"
#include "decode/stored_tensor.h"
#include "haulway/dtype.h"
#include "haulway/source.h"

namespace haulway::arithmetic {

bool IsPlain(const StorageInfo& storage) {
  return IsAsInMemory(storage) &&
         storage.frame_end - storage.frame_offset == storage.stored_bytes;
}

std::optional<Buffer> ViewBytes(const FormatReader& reader,
                                const TensorInfo& info, uint64_t begin,
                                uint64_t length) {
  const StorageInfo& storage = reader.index().storages[info.storage];
  if (!IsPlain(storage)) return std::nullopt;
  const uint64_t at = info.storage_offset * ItemBytes(info.dtype) + begin;
  return reader.source()->View(storage.offset + at, length);
}

Status ReadBytes(const FormatReader& reader, const TensorInfo& info,
                 uint64_t begin, std::span<std::byte> out) {
  const StorageInfo& storage = reader.index().storages[info.storage];
  const uint64_t at = info.storage_offset * ItemBytes(info.dtype) + begin;
  return IsPlain(storage) ? reader.source()->ReadAt(storage.offset + at, out)
                          : ReadStorageRange(reader, info.storage, at, out);
}

Result<Buffer> LoadBytes(const FormatReader& reader, const TensorInfo& info,
                         uint64_t begin, uint64_t length,
                         const KeptMemory* memory) {
  if (length == 0) return Buffer();
  auto view = ViewBytes(reader, info, begin, length);
  if (view.has_value()) return *std::move(view);
  HAULWAY_ASSIGN(Buffer bytes, memory != nullptr ? memory->Take(length)
                                                 : AllocateBuffer(length));
  HAULWAY_TRY(ReadBytes(reader, info, begin, bytes.mutable_bytes()));
  return bytes;
}

}  // namespace haulway::arithmetic
