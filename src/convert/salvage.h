// Opens what is left of a truncated file.

#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "haulway/checkpoint.h"
#include "haulway/convert.h"
#include "haulway/status.h"

namespace haulway::convert {

struct Salvaged {
  std::shared_ptr<const Checkpoint> checkpoint;
  // Number of existing bytes. A storage whose frame ends past them is lost: it
  // reads as zeros or fails.
  uint64_t bytes = 0;
  // Where an incomplete part begins, if nothing tells what it was.
  std::optional<uint64_t> unknown_from = std::nullopt;
  // Tensors and metadata that the file names but does not describe rightly.
  std::vector<LostTensor> wrong = {};
  std::vector<LeftOut> left_out = {};

  bool IsLost(uint32_t storage) const {
    return checkpoint->index().storages[storage].frame_end > bytes;
  }
};

// Opens a file as if it were complete: a zip without a directory by its
// records, safetensors files by the entries of their header that are right, and
// GGUF and Tensorizer files by the headers at their start. Fails with
// kUnsupported for other formats, and as opening does if the metadata itself is
// cut.
Result<Salvaged> Salvage(std::shared_ptr<const ByteSource> source,
                         const OpenOptions& options);

}  // namespace haulway::convert
