// Converts safetensors headers to the index of a checkpoint.

#pragma once

#include <cstdint>
#include <memory>

#include "format/flat_reader.h"
#include "haulway/options.h"
#include "haulway/source.h"
#include "haulway/status.h"
#include "safetensors/safetensors_header.h"

namespace haulway::safetensors {

// The header of a file, and the offset of its data.
struct OpenedHeader {
  Header header;
  uint64_t json_bytes = 0;
  uint64_t data_offset = 0;
};

// A HeaderReader is a dict of tensors in one source, built from one or several
// headers.
class HeaderReader : public FlatReader {
 public:
  explicit HeaderReader(std::shared_ptr<const ByteSource> source);

  // Reads the header of `file`. The header lives as long as the reader.
  Result<OpenedHeader> ReadHeader(const ByteSource& file,
                                  const OpenOptions& options);
  // Adds a tensor whose file's data begins at `data_offset` of the source.
  // Fails with kUnsupported if its strides cannot be expressed.
  Status Append(const HeaderTensor& tensor, uint64_t data_offset);
};

}  // namespace haulway::safetensors
