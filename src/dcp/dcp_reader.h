// Opens a directory of torch.distributed.checkpoint as one checkpoint.

#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "haulway/dcp.h"
#include "haulway/format.h"
#include "haulway/source.h"
#include "haulway/status.h"
#include "haulway/verify.h"

namespace haulway::dcp {

// Opens the directory whose `.metadata` is `source`. A file named
// `__N.metadata` leads to those of all ranks. Reads the metadata and the
// objects. Data files on a server are opened when tensors are read, local ones
// immediately. A `meta.pt` in a local directory becomes the entry "meta".
Result<std::unique_ptr<const FormatReader>> OpenDirectory(
    std::shared_ptr<const ByteSource> source, const OpenOptions& options);

// Name of a fact in an index from OpenShards(): the value of
// Metadata::states_shapes.
inline constexpr std::string_view kShapesStatedFact = "shapes_stated";

// A safetensors data file of a directory.
struct ShardFile {
  std::string name;
  std::unique_ptr<const FormatReader> reader;
};

// Opens the tensors whose chunks the files contain. `read` has the facts from
// their headers: its items are the data of chunks, and its file rows are those
// of `files`. Fails with kCorrupt unless the chunks tile their tensors.
Result<std::unique_ptr<const FormatReader>> OpenShards(
    std::vector<ShardFile> files, std::unique_ptr<const MetadataFile> read,
    const OpenOptions& options);

// Checks every archive in the metadata: its complete contents, its CRC-32s, and
// that it contains the expected tensor.
Result<VerifyReport> VerifyDirectory(std::shared_ptr<const ByteSource> source,
                                     const VerifyOptions& options);

}  // namespace haulway::dcp
