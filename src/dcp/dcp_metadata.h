// The metadata of a directory of torch.distributed.checkpoint: the pickle
// `.metadata`, and `__0.metadata`, `__1.metadata` ... of ranks that saved
// without talking to one another.
//
// A codec: bytes in, facts out, no I/O. The format is that of PyTorch's
// torch/distributed/checkpoint/metadata.py and filesystem.py; docs/formats/
// torch-dcp.md has what is taken and what is refused.

#pragma once

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

// Whether a file that begins with `head` is such a pickle.
bool IsMetadata(std::span<const std::byte> head);

// Parses one metadata file and looks up where each chunk and object is stored.
// What the facts refer to lives in `bytes` and `arena`. Uses the options
// `limits` and `allowed_globals`; the latter only name what may stand in the
// planner's data beside paths.
//
// Fails, at the byte of the pickle where that is known, with
//   kUnsafe       for a name that is not on the format's list, or a use of one
//                 that is not its own,
//   kCorrupt      if the pickle holds something else than the format, a path
//                 leads out of the directory, or a chunk is stored nowhere,
//   kUnsupported  for chunks that went through an extension, naming that, and
//                 element types that cannot be had,
//   kLimit, kTruncated as ParsePickle().
Result<Metadata> ParseMetadata(std::span<const std::byte> bytes,
                               const OpenOptions& options, TreeArena* arena);

// ParseMetadata() of all of a source. Fails as that and as reading do.
Result<std::unique_ptr<MetadataFile>> ReadMetadata(const ByteSource& source,
                                                   const OpenOptions& options);

// What ranks saved on their own, as one: entries of all, chunks of all; what
// several ranks saved is taken of the first. Fails with kCorrupt if they
// contradict one another. Requires: one at least.
Result<Metadata> JoinRanks(std::vector<Metadata> ranks);

// The file that torch's own writer makes of such facts, as a pickle of protocol
// 4. Planner's data are the paths of entries, if has_paths, else None.
// ParseMetadata() gives the same facts.
std::string EncodeMetadata(const Metadata& metadata);

// Whether the chunks of every tensor tile it without a hole and without an
// overlap, and no two items share bytes of a file. Fails with kCorrupt, naming
// tensor and chunk, and kLimit for chunks that are too many to compare.
Status CheckLayout(const Metadata& metadata);

// "chunk [3, 0]+[3, 6]", for messages.
std::string PlaceOf(const Chunk& chunk);

}  // namespace haulway::dcp
