// Recognises quantized weights by the tensors beside them that hold their
// scales. Such numbers mean something only together: casting one of them alone
// would change the weight.

#pragma once

#include <cstdint>
#include <map>
#include <string_view>

#include "haulway/index.h"
#include "haulway/scaled.h"
#include "haulway/status.h"

namespace haulway {

// The quantized weights of an index, and what belongs to them. The index must
// outlive it.
class ScaledTensors {
 public:
  explicit ScaledTensors(const CheckpointIndex& index);

  // Fails with kUnsupported if the tensor is a quantized weight or belongs to
  // one.
  Status CheckCast(uint32_t tensor) const;
  // The same where numbers are computed from its own, and no option allows it.
  Status CheckPlain(uint32_t tensor) const;
  // CheckCast() for the tensors of a storage.
  Status CheckCastOfStorage(uint32_t storage) const;
  uint64_t weight_count() const;

 private:
  struct Part {
    const ScaledLayout* layout = nullptr;
    std::string_view weight;  // Names.
    std::string_view scales;
    bool is_weight = false;
  };

  Status Check(uint32_t tensor, std::string_view remedy) const;

  const CheckpointIndex& index_;
  std::map<uint32_t, Part> parts_;  // By row of index.tensors.
};

}  // namespace haulway
