// Tensors by name as a tensorizer file.

#pragma once

#include <memory>

#include "haulway/layout.h"
#include "haulway/options.h"
#include "haulway/save.h"
#include "haulway/status.h"
#include "haulway/tensorizer.h"

namespace haulway::tensorizer {

// Sets what encrypts a new file: a key as it is, or one that a passphrase
// gives at libsodium's moderate cost (256 MiB), with a new salt; nothing if
// both are empty. Fails as CheckKey() and DeriveTensorizerKey() do.
Status SetKey(const EncryptionKey& key, TensorizerOptions* options);

// A dict of the tensors, each under one key. Fails as LayOutTensorizer() does.
Result<std::unique_ptr<const haulway::Layout>> LayOutTensors(
    const TensorsToWrite& tensors, const SaveOptions& options);

}  // namespace haulway::tensorizer
