// Digests of tensors, whatever the format that they are in.

#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/sha256.h"
#include "convert/tensor_source.h"
#include "haulway/checkpoint.h"
#include "haulway/status.h"

namespace haulway::convert {

struct DigestRequest {
  uint32_t tensor = 0;  // Row of index().tensors.
  DType to = DType::kU8;
};

// SHA-256 of the elements of each, as ElementsOf() has them; several tensors at
// a time. Fails as reading them does.
Result<std::vector<Sha256Value>> DigestTensors(
    const Checkpoint& from, std::span<const DigestRequest> requests,
    const SourceOptions& options, int threads);

}  // namespace haulway::convert
