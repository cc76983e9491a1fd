// The metadata of a directory of torch.distributed.checkpoint: the pickle
// `.metadata`, or `__0.metadata`, `__1.metadata` ... of ranks that saved
// without a coordinator.
//
// A codec: bytes in, facts out, no I/O. The format is defined by
// torch/distributed/checkpoint/metadata.py and filesystem.py of PyTorch.
// docs/formats/torch-dcp.md lists what is accepted and what is refused.

#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "haulway/dcp.h"
#include "haulway/options.h"
#include "haulway/status.h"
#include "haulway/tree.h"

namespace haulway::dcp {

// Returns whether a chunk has no elements.
inline bool IsEmpty(const Chunk& chunk) {
  return std::ranges::find(chunk.sizes, 0) != chunk.sizes.end();
}

// Returns whether a file that begins with `head` is such a pickle.
bool IsMetadata(std::span<const std::byte> head);

// Parses one metadata file and resolves where each chunk and object is stored.
// The facts refer to `bytes` and `arena`. Uses the options `limits` and
// `allowed_globals`; the latter apply only to the planner's data.
//
// Fails, at the byte in the pickle if known, with
//   kUnsafe       for a name that is not in the format, or a misuse of one,
//   kCorrupt      if the pickle does not have the format, a path leads out of
//                 the directory, or a chunk is not stored,
//   kUnsupported  for chunks that an extension transformed other than zstd,
//                 which the message names, and for element types that Haulway
//                 lacks,
//   kLimit, kTruncated as ParsePickle().
Result<Metadata> ParseMetadata(std::span<const std::byte> bytes,
                               const OpenOptions& options, TreeArena* arena);

// Applies ParseMetadata() to a whole source. Fails as that and as reading do.
Result<std::unique_ptr<MetadataFile>> ReadMetadata(const ByteSource& source,
                                                   const OpenOptions& options);

// Joins the metadata of ranks that saved without a coordinator: all entries and
// all chunks. Of data that several ranks saved, uses the first rank's. Fails
// with kCorrupt if ranks contradict one another. Requires: at least one rank.
Result<Metadata> JoinRanks(std::vector<Metadata> ranks);

// Encodes the facts as torch's own writer does, as a pickle of protocol 4. The
// planner's data has the paths of entries if has_paths, else it is None.
// ParseMetadata() returns the same facts.
std::string EncodeMetadata(const Metadata& metadata);

// Checks that the chunks of every tensor tile it without a hole or an overlap,
// and that no two items share bytes of a file. Fails with kCorrupt, naming
// tensor and chunk, and with kLimit if there are too many chunks to compare.
Status CheckLayout(const Metadata& metadata);

// Returns whether extensions transformed the data of a chunk.
bool HasTransforms(const Metadata& metadata);

// Returns "chunk [3, 0]+[3, 6]", for messages.
std::string PlaceOf(const Chunk& chunk);

}  // namespace haulway::dcp
