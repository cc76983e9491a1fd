// Reads one storage, or the elements of one tensor, on the calling thread.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "haulway/buffer.h"
#include "haulway/format.h"
#include "haulway/status.h"

namespace haulway {

// These implement the methods of Checkpoint with the same names.
Result<Buffer> ReadStorage(const FormatReader& reader, uint32_t row);
Status ReadTensor(const FormatReader& reader, const TensorInfo& tensor,
                  std::span<std::byte> out);
Status ReadStorageRange(const FormatReader& reader, uint32_t row,
                        uint64_t offset, std::span<std::byte> out);

}  // namespace haulway
