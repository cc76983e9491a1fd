// Tells whether files are those of an earlier run.

#pragma once

#include <string>

#include "haulway/index.h"
#include "haulway/source.h"
#include "haulway/status.h"

namespace haulway {

// Returns a line for each file of a checkpoint: its name, size and version. The
// version of a local file is its number and its time of change, that of an
// object what its server says. `opened`: the file that was opened. Fails as
// Checkpoint::Fingerprint() does.
Result<std::string> FingerprintOfFiles(const CheckpointIndex& index,
                                       const ByteSource& source,
                                       const ByteSource& opened);

}  // namespace haulway
