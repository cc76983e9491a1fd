// What the writers of all layouts do with one tensor: its fields, the lowest
// version that holds it, its digests and its encryption.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "haulway/record_layout.h"
#include "haulway/status.h"
#include "haulway/tensorizer_writer.h"
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
  const std::byte* bytes = nullptr;  // Of fields.data_bytes.
};

// Fails as LayOutTensorizer() does for what is in the options alone.
Status CheckOptions(const TensorizerOptions& options);

// Plans tensor `i` of some, with the encryption that the options name, and
// raises `version` to the lowest that holds it. Fails as LayOutTensorizer()
// does.
Result<TensorPlan> PlanTensor(const TensorizerInput& tensor, size_t i,
                              const TensorizerOptions& options, HashRule rule,
                              uint32_t* version);

// Fails with kInvalidArgument for names that no reader would take together.
Status CheckNames(std::span<const TensorPlan> plans);

// Where the tag of a header goes, and what it is made of.
struct HeaderTagging {
  const Secret* metadata_key = nullptr;
  uint64_t row = 0;
  HeaderTag* tag = nullptr;  // Null: none is wanted.
};

// Digests, and encrypts if there is a key, one tensor. What is passed must
// outlive it.
std::unique_ptr<RecordEncoder> EncodeTensor(const TensorPlan& plan,
                                            const Secret& key, HashRule rule,
                                            const HeaderTagging& tagging = {});
// RecordLayout::DigestTogether() for such encoders.
void DigestTensorsTogether(std::span<RecordEncoder* const> encoders,
                           std::span<const std::span<const std::byte>> pieces);

std::optional<KeyDerivation> DerivationOf(const TensorizerOptions& options);

}  // namespace haulway::tensorizer
