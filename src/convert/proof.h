// Digests of tensors, independent of their format.

#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
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

// The tensors of another checkpoint, one per request.
struct ComparedWith {
  const Checkpoint* checkpoint = nullptr;
  std::span<const DigestRequest> requests;
};

// Returns the SHA-256 of each tensor's elements as ElementsOf() returns them.
// Digests several tensors at a time. With `other`, reads its tensors in step
// and compares them byte for byte, so that equal ones are digested once. If one
// differs, fails with kMismatch and sets `*differing` to the number of the
// request. Fails as reading does.
Result<std::vector<Sha256Value>> DigestTensors(
    const Checkpoint& from, std::span<const DigestRequest> requests,
    const SourceOptions& options, int threads, const ComparedWith& other = {},
    std::optional<size_t>* differing = nullptr);

}  // namespace haulway::convert
