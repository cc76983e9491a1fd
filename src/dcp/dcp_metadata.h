// The metadata of a directory of torch.distributed.checkpoint: the pickle
// `.metadata`, and `__0.metadata`, `__1.metadata` ... of ranks that saved
// without talking to one another.
//
// A codec: bytes in, facts out, no I/O. The format is that of PyTorch's
// torch/distributed/checkpoint/metadata.py and filesystem.py; docs/formats/
// torch-dcp.md has what is taken and what is refused.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "haulway/buffer.h"
#include "haulway/dtype.h"
#include "haulway/options.h"
#include "haulway/status.h"
#include "haulway/tree.h"

namespace haulway::dcp {

inline constexpr uint32_t kNoFile = 0xFFFFFFFF;

// A run of a file that is one archive of torch.save, of a chunk or an object.
struct StoredItem {
  uint32_t file = kNoFile;  // Row of Metadata::files; kNoFile: none is named.
  uint64_t offset = 0;
  uint64_t length = 0;
};

// A rectangle of a tensor, which is stored on its own.
struct Chunk {
  std::span<const int64_t> offsets;  // Of its first element, by dimension.
  std::span<const int64_t> sizes;
  StoredItem item;
};

struct StoredTensor {
  std::string_view name;
  DType dtype = DType::kU8;
  bool requires_grad = false;
  std::span<const int64_t> shape;
  uint64_t nbytes = 0;       // Of all its elements.
  uint32_t first_chunk = 0;  // In Metadata::chunks.
  uint32_t chunk_count = 0;
};

// What is no tensor: any object, saved by torch.save.
struct StoredObject {
  std::string_view name;
  StoredItem item;
};

// One entry of the flat state dict.
struct StoredEntry {
  bool is_tensor = false;
  uint32_t row = 0;  // Of tensors or of objects.
  // The keys (strings) and positions (numbers) that lead to it in the nested
  // state dict; empty if the planner noted none.
  std::span<const Value> path;
};

struct Metadata {
  std::vector<std::string_view> files;  // Paths down from the directory.
  LongVector<StoredEntry> entries;      // In the order of the state dict.
  LongVector<StoredTensor> tensors;
  LongVector<Chunk> chunks;
  std::vector<StoredObject> objects;
  std::string_view version;  // Empty in old files.
  bool has_paths = false;    // Whether the planner noted where entries stand.

  std::span<const Chunk> ChunksOf(const StoredTensor& tensor) const {
    return std::span(chunks).subspan(tensor.first_chunk, tensor.chunk_count);
  }
  std::string_view NameOf(const StoredEntry& entry) const {
    return entry.is_tensor ? tensors[entry.row].name : objects[entry.row].name;
  }
};

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

// What ranks saved on their own, as one: entries of all, chunks of all; what
// several ranks saved is taken of the first. Fails with kCorrupt if they
// contradict one another. Requires: one at least.
Result<Metadata> JoinRanks(std::vector<Metadata> ranks);

// Whether the chunks of every tensor tile it without a hole and without an
// overlap, and no two items share bytes of a file. Fails with kCorrupt, naming
// tensor and chunk, and kLimit for chunks that are too many to compare.
Status CheckLayout(const Metadata& metadata);

// "chunk [3, 0]+[3, 6]", for messages.
std::string PlaceOf(const Chunk& chunk);

}  // namespace haulway::dcp
