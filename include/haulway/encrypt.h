// Encrypting and decrypting whole checkpoints.

#pragma once

#include <cstdint>

#include "haulway/checkpoint.h"
#include "haulway/encryption.h"
#include "haulway/export.h"
#include "haulway/layout.h"
#include "haulway/sink.h"
#include "haulway/status.h"

namespace haulway {

struct EncryptStats {
  uint64_t tensors = 0;
  WriteStats write;
};

struct EncryptOptions {
  WriteOptions write;
  // As TensorizerOptions has it.
  bool authenticate_metadata = true;
};

// Writes what a tensorizer file holds to `sink`, encrypted with `key`, or as
// it is if that is empty; every digest of `from` is checked on the way. A file
// in segments stays one, with its metadata, but in one file. A passphrase
// becomes a key at libsodium's moderate cost (256 MiB), with a new salt. Holds
// all tensors in memory. Fails with kUnsupported for checkpoints of other
// formats, kAuth if `from` is encrypted and was opened without its key, and as
// reading and writing do.
HAULWAY_EXPORT Result<EncryptStats> EncryptCheckpoint(
    const Checkpoint& from, const EncryptionKey& key, ByteSink& sink,
    const EncryptOptions& options = {});

}  // namespace haulway
