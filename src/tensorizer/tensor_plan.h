// The steps for one tensor that the writers of all layouts share: its fields,
// the lowest version that can store it, its digests and its encryption.

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
  CryptBlock crypt;  // Without the MACs.
  uint64_t macs = 0;
  // Location of the fields.data_bytes bytes, as in a Payload.
  const std::byte* bytes = nullptr;
  const ByteSource* source = nullptr;
  uint64_t source_offset = 0;

  Payload PayloadAt(uint64_t offset) const {
    return {offset, fields.data_bytes, bytes, source, source_offset};
  }
};

// Checks the options alone. Fails as LayOutTensorizer() does.
Status CheckOptions(const TensorizerOptions& options);

// Plans tensor `i`, with the encryption in the options, and raises `version` to
// the lowest version that can store it. Fails as LayOutTensorizer() does.
Result<TensorPlan> PlanTensor(const TensorizerInput& tensor, size_t i,
                              const TensorizerOptions& options, HashRule rule,
                              uint32_t* version);

// Calls PlanTensor() for each tensor, numbered from `first` on.
Result<std::vector<TensorPlan>> PlanTensors(
    std::span<const TensorizerInput> tensors, size_t first,
    const TensorizerOptions& options, HashRule rule, uint32_t* version);

// Returns the lowest version that supports these options.
uint32_t LowestVersion(const TensorizerOptions& options);
// Returns which bytes the digests in headers of this layout cover.
HashRule RuleOf(const TensorizerOptions& options);

// Fails with kInvalidArgument for names that readers would refuse in one file.
Status CheckNames(std::span<const TensorPlan> plans);

// Returns an encoder that digests one tensor, and encrypts it if there is a
// key. Its Finish() returns the header. The arguments must outlive it.
std::unique_ptr<PayloadEncoder> EncodeTensor(const TensorPlan& plan,
                                             const Secret& key, HashRule rule);
// Implements Layout::DigestTogether() for these encoders.
void DigestTensorsTogether(std::span<PayloadEncoder* const> encoders,
                           std::span<const std::span<const std::byte>> pieces);

std::optional<KeyDerivation> DerivationOf(const TensorizerOptions& options);

}  // namespace haulway::tensorizer
