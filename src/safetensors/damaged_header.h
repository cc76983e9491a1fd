// Opens what is sound of a damaged safetensors file.

#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "haulway/format.h"
#include "haulway/options.h"
#include "haulway/source.h"
#include "haulway/status.h"

namespace haulway::safetensors {

// A tensor or value whose entry in the header is wrong.
struct WrongEntry {
  std::string name;
  std::string why;
  bool is_metadata = false;
};

// Returns a reader of the tensors whose entries are right, whatever the others
// are and whatever lies between them, and adds the wrong entries to `wrong`.
// `padded` is the file, long enough for tensors that were cut off; its first
// `file_bytes` bytes are there. Fails unless these have the whole header, and
// it is a JSON object, perhaps followed by padding of any kind.
Result<std::unique_ptr<const FormatReader>> OpenDamaged(
    std::shared_ptr<const ByteSource> padded, uint64_t file_bytes,
    const OpenOptions& options, std::vector<WrongEntry>* wrong);

}  // namespace haulway::safetensors
