// Edits Tensorizer files and keeps the kinds and module numbers of tensors:
// files in segments in place, others by writing them anew.

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

// Returns whether the file is in segments, and they support the edit.
bool TakesSegments(const Checkpoint& file, const FileEdit& edit);

// Edits the file in place. Requires: TakesSegments(). Closes `file` before the
// file changes. Fails as Edit() does.
Result<EditReport> EditSegments(std::shared_ptr<const Checkpoint> file,
                                const std::string& path, const FileEdit& edit,
                                const EditOptions& options);

// A file to write, and the bytes it is written from. The checkpoints in the
// edit must outlive it.
struct RewrittenTensorizer {
  std::vector<BytesToWrite> bytes;  // Parallel to inputs.
  std::vector<TensorizerInput> inputs;
  std::unique_ptr<const Layout> layout;
};

// Lays out the edited file. Requires: a Tensorizer file. Fails as Edit() does.
Result<RewrittenTensorizer> LayOutEdited(const Checkpoint& file,
                                         const FileEdit& edit,
                                         const EditOptions& options);

}  // namespace haulway::convert
