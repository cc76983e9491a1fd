// What the writers of all layouts do with one tensor: its fields, the lowest
// version that holds it, its digests and its encryption.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "haulway/layout.h"
#include "haulway/status.h"
#include "haulway/tensorizer.h"
#include "tensorizer/tensorizer_authentication.h"
#include "tensorizer/tensorizer_crypt.h"
#include "tensorizer/tensorizer_encode.h"
#include "tensorizer/tensorizer_layout.h"

namespace haulway::tensorizer {

struct TensorPlan {
  TensorFields fields;
  HeaderFields header;
  CryptBlock crypt;  // Without its MACs.
  uint64_t macs = 0;
  // Where the fields.data_bytes bytes are, as in a Payload.
  const std::byte* bytes = nullptr;
  const ByteSource* source = nullptr;
  uint64_t source_offset = 0;

  Payload PayloadAt(uint64_t offset) const {
    return {offset, fields.data_bytes, bytes, source, source_offset};
  }
};

// Fails as LayOutTensorizer() does for what is in the options alone.
Status CheckOptions(const TensorizerOptions& options);

// Plans tensor `i` of some, with the encryption that the options name, and
// raises `version` to the lowest that holds it. Fails as LayOutTensorizer()
// does.
Result<TensorPlan> PlanTensor(const TensorizerInput& tensor, size_t i,
                              const TensorizerOptions& options, HashRule rule,
                              uint32_t* version);

// PlanTensor() for all of them, numbered from `first` on.
Result<std::vector<TensorPlan>> PlanTensors(
    std::span<const TensorizerInput> tensors, size_t first,
    const TensorizerOptions& options, HashRule rule, uint32_t* version);

// The lowest version there is with these options.
uint32_t LowestVersion(const TensorizerOptions& options);
// What the digests in headers of this layout cover.
HashRule RuleOf(const TensorizerOptions& options);

// Fails with kInvalidArgument for names that no reader would take together.
Status CheckNames(std::span<const TensorPlan> plans);

// Digests, and encrypts if there is a key, one tensor; Finish() gives its
// header. What is passed must outlive it.
std::unique_ptr<PayloadEncoder> EncodeTensor(const TensorPlan& plan,
                                             const Secret& key, HashRule rule);
// Layout::DigestTogether() for such encoders.
void DigestTensorsTogether(std::span<PayloadEncoder* const> encoders,
                           std::span<const std::span<const std::byte>> pieces);

std::optional<KeyDerivation> DerivationOf(const TensorizerOptions& options);

}  // namespace haulway::tensorizer
