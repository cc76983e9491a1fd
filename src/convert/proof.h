// Digests of tensors, whatever the format that they are in.

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

// The tensors of another checkpoint, one for each request.
struct ComparedWith {
  const Checkpoint* checkpoint = nullptr;
  std::span<const DigestRequest> requests;
};

// SHA-256 of the elements of each, as ElementsOf() has them; several tensors at
// a time. With `other`, its tensors are read in step and compared byte for
// byte, so that equal ones are digested once: kMismatch, and `*differing` is
// the number of the request, at one that differs. Fails as reading does.
Result<std::vector<Sha256Value>> DigestTensors(
    const Checkpoint& from, std::span<const DigestRequest> requests,
    const SourceOptions& options, int threads, const ComparedWith& other = {},
    std::optional<size_t>* differing = nullptr);

}  // namespace haulway::convert
