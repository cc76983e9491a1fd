// A directory of torch.distributed.checkpoint as one checkpoint.

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

// Opens the directory in which `source`, its `.metadata`, lies; one named
// `__N.metadata` leads to those of all ranks. Reads that file and the objects;
// data files are opened when tensors are read, of a server, else at once. A
// `meta.pt` beside them, of a local directory, is the entry "meta".
Result<std::unique_ptr<const FormatReader>> OpenDirectory(
    std::shared_ptr<const ByteSource> source, const OpenOptions& options);

// A fact of an index from OpenShards(): Metadata::states_shapes.
inline constexpr std::string_view kShapesStatedFact = "shapes_stated";

// A file of a directory whose data files are safetensors.
struct ShardFile {
  std::string name;
  std::unique_ptr<const FormatReader> reader;
};

// The tensors of which such files hold the chunks. `read` has the facts that
// their headers state; its items are chunks' data, and rows of files are those
// of `files`. Fails with kCorrupt unless the chunks tile their tensors.
Result<std::unique_ptr<const FormatReader>> OpenShards(
    std::vector<ShardFile> files, std::unique_ptr<const MetadataFile> read,
    const OpenOptions& options);

// Checks every archive that the metadata name: all that is in it, its
// CRC-32s, and that it holds the tensor that it must.
Result<VerifyReport> VerifyDirectory(std::shared_ptr<const ByteSource> source,
                                     const VerifyOptions& options);

}  // namespace haulway::dcp
