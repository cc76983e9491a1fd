// Bytes of stored tensors.

#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "base/kept_memory.h"
#include "haulway/buffer.h"
#include "haulway/format.h"
#include "haulway/index.h"
#include "haulway/status.h"

namespace haulway::arithmetic {

// Returns whether the bytes are those of the source, without a frame to check.
bool IsPlain(const StorageInfo& storage);

// Each requires that the tensor is dense, in rows.

// Returns a view of bytes of a tensor; nullopt if there is none.
std::optional<Buffer> ViewBytes(const FormatReader& reader,
                                const TensorInfo& info, uint64_t begin,
                                uint64_t length);
Status ReadBytes(const FormatReader& reader, const TensorInfo& info,
                 uint64_t begin, std::span<std::byte> out);
// Returns bytes of a tensor: a view if there is one, else in memory of
// `memory`, or in new memory if that is null.
Result<Buffer> LoadBytes(const FormatReader& reader, const TensorInfo& info,
                         uint64_t begin, uint64_t length,
                         const KeptMemory* memory = nullptr);
// Returns all of them.
inline Result<Buffer> LoadBytes(const FormatReader& reader,
                                const TensorInfo& info) {
  return LoadBytes(reader, info, 0, info.nbytes);
}

}  // namespace haulway::arithmetic
