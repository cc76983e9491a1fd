#include "tensorizer/tensorizer_save.h"

#include <utility>
#include <vector>

#include "haulway/tensorizer.h"
#include "tensorizer/tensorizer_crypt.h"

namespace haulway::tensorizer {

Status SetKey(const EncryptionKey& key, TensorizerOptions* options) {
  HAULWAY_TRY(CheckKey(key));
  if (!key.key.empty()) {
    options->key = key.key;
  } else if (!key.passphrase.empty()) {
    options->derivation = NewTensorizerDerivation();
    const TensorizerDerivation& derivation = *options->derivation;
    HAULWAY_ASSIGN(options->key, DeriveTensorizerKey(
                                     key.passphrase, derivation.operations,
                                     derivation.memory_bytes, derivation.salt));
  }
  return Status();
}

Result<std::unique_ptr<const haulway::Layout>> LayOutTensors(
    const TensorsToWrite& tensors, const SaveOptions& options) {
  TensorizerOptions format;
  if (options.alignment.has_value()) format.alignment = *options.alignment;
  HAULWAY_TRY(SetKey(options.key, &format));
  std::vector<TensorizerInput> inputs;
  inputs.reserve(tensors.tensors.size());
  for (const TensorToWrite& tensor : tensors.tensors) {
    TensorizerInput& input = inputs.emplace_back();
    input.path = {{.key = tensor.name}};
    input.dtype = tensor.dtype;
    input.shape.assign(tensor.shape.begin(), tensor.shape.end());
    input.bytes = tensor.bytes.bytes;
    input.source = tensor.bytes.source.get();
    input.source_offset = tensor.bytes.source_offset;
  }
  return LayOutTensorizer(inputs, format);
}

}  // namespace haulway::tensorizer
