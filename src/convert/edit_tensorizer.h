// Changing Tensorizer files, which keep kinds and module numbers of tensors:
// those in segments in place, the others by writing them anew.

#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "haulway/checkpoint.h"
#include "haulway/convert.h"
#include "haulway/layout.h"
#include "haulway/save.h"
#include "haulway/status.h"
#include "haulway/tensorizer.h"

namespace haulway::convert {

// Whether the file is in segments, and the edit one that these take.
bool TakesSegments(const Checkpoint& file, const FileEdit& edit);

// Makes the edit in place. Requires: TakesSegments(). Fails as Edit() does.
Result<EditReport> EditSegments(const Checkpoint& file, const std::string& path,
                                const FileEdit& edit,
                                const EditOptions& options);

// A file that is to be written, and what it is written from. The checkpoints of
// the edit must outlive it.
struct RewrittenTensorizer {
  std::vector<BytesToWrite> bytes;  // Parallel to inputs.
  std::vector<TensorizerInput> inputs;
  std::unique_ptr<const Layout> layout;
};

// Requires: a Tensorizer file. Fails as Edit() does.
Result<RewrittenTensorizer> LayOutEdited(const Checkpoint& file,
                                         const FileEdit& edit,
                                         const EditOptions& options);

}  // namespace haulway::convert
