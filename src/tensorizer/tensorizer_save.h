// Saves named tensors as a tensorizer file.

#pragma once

#include <memory>

#include "haulway/layout.h"
#include "haulway/options.h"
#include "haulway/save.h"
#include "haulway/status.h"
#include "haulway/tensorizer.h"

namespace haulway::tensorizer {

// Sets the encryption of a new file: the given key, or one derived from the
// passphrase with a new salt at libsodium's moderate cost (256 MiB); none if
// both are empty. Fails as CheckKey() and DeriveTensorizerKey() do.
Status SetKey(const EncryptionKey& key, TensorizerOptions* options);

// Lays out a dict of the tensors, one key each. Fails as LayOutTensorizer()
// does.
Result<std::unique_ptr<const haulway::Layout>> LayOutTensors(
    const TensorsToWrite& tensors, const SaveOptions& options);

}  // namespace haulway::tensorizer
