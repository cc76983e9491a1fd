// Directories of torch.distributed.checkpoint (DCP): what `.metadata` says, and
// where the chunks of tensors lie in the data files. For readers that put
// chunks into memory of their own; Checkpoint gives whole tensors.

#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "haulway/buffer.h"
#include "haulway/dtype.h"
#include "haulway/format.h"
#include "haulway/layout.h"
#include "haulway/options.h"
#include "haulway/sink.h"
#include "haulway/source.h"
#include "haulway/status.h"
#include "haulway/tree.h"

namespace haulway {

namespace dcp {

inline constexpr uint32_t kNoFile = 0xFFFFFFFF;

// A range of a data file that is one archive of torch.save, of a chunk or an
// object; or what the extensions of the writer made of the archive.
struct StoredItem {
  uint32_t file = kNoFile;  // Row of Metadata::files; kNoFile: none is named.
  uint64_t offset = 0;
  uint64_t length = 0;
  // Descriptors of the extensions, e.g. "stream.zstd/1", in the order in which
  // a reader undoes them. Empty for an archive as it is.
  std::span<const std::string_view> transforms = {};
};

// A rectangle of a tensor, which is stored on its own. Offsets and sizes are in
// elements, by dimension.
struct Chunk {
  std::span<const int64_t> offsets;
  std::span<const int64_t> sizes;
  StoredItem item;
};

// The numbers that a pickle has for torch's memory formats.
enum class MemoryFormat : uint8_t {
  kContiguous = 0,
  kChannelsLast = 1,
  kPreserve = 2,
};

struct StoredTensor {
  std::string_view name;
  DType dtype = DType::kU8;
  bool requires_grad = false;
  bool pin_memory = false;
  MemoryFormat memory_format = MemoryFormat::kContiguous;
  std::span<const int64_t> shape;
  // The strides, in elements, that the tensor had when it was saved. Releases
  // of torch before 2.15 do not record them.
  std::optional<std::span<const int64_t>> strides = {};
  uint64_t nbytes = 0;       // The bytes of all elements.
  uint32_t first_chunk = 0;  // In Metadata::chunks.
  uint32_t chunk_count = 0;
};

// A value that is not a tensor: any object, saved by torch.save.
struct StoredObject {
  std::string_view name;
  StoredItem item;
};

// One entry of the flat state dict.
struct StoredEntry {
  bool is_tensor = false;
  uint32_t row = 0;  // The place among the tensors, or among the objects.
  // The keys (strings) and positions (numbers) that lead to it in the nested
  // state dict; empty if the planner noted none.
  std::span<const Value> path;
};

// What the writer notes about a save. A field is missing if the file has none
// or a value of another type.
struct StorageMeta {
  std::optional<std::string_view> checkpoint_id;  // A path, or another text.
  std::optional<std::string_view> save_id;
  std::optional<std::string_view> load_id;
  std::vector<std::string_view> modules;
};

struct Metadata {
  std::vector<std::string_view> files;  // Paths down from the directory.
  LongVector<StoredEntry> entries;      // In the order of the state dict.
  LongVector<StoredTensor> tensors;
  LongVector<Chunk> chunks;
  std::vector<StoredObject> objects;
  std::string_view version;  // Empty in old files.
  std::optional<StorageMeta> storage_meta;
  Value planner_data;      // As it is in the pickle; None if there is none.
  bool has_paths = false;  // Whether an entry has a path.
  bool has_plans = false;  // Whether Megatron kept its plans of saving.
  // Whether items are archives of torch.save; else each is a chunk's data.
  bool has_archives = true;
  // Whether the files state the shapes of tensors. Otherwise a tensor ends
  // where its last chunk does, and a missing last chunk cannot be detected.
  bool states_shapes = true;

  std::span<const Chunk> ChunksOf(const StoredTensor& tensor) const {
    return std::span(chunks).subspan(tensor.first_chunk, tensor.chunk_count);
  }
  std::string_view NameOf(const StoredEntry& entry) const {
    return entry.is_tensor ? tensors[entry.row].name : objects[entry.row].name;
  }
};

// A Metadata and what it refers to.
struct MetadataFile {
  Buffer bytes;
  TreeArena arena;
  Metadata metadata;
};

}  // namespace dcp

// Reads a file `.metadata` or `__N.metadata`, and checks that its parts agree:
// every tensor is the sum of its chunks, each of which is stored somewhere, and
// paths lead down from the directory. Looks at no data file, and uses
// `limits`, `strictness` and `allowed_globals` of the options.
//
// Fails with kUnsafe for a name that is not one of the format's, kCorrupt for
// parts that contradict each other, kUnsupported for chunks that were written
// through an extension other than zstd; and as reading does.
HAULWAY_EXPORT Result<std::unique_ptr<const dcp::MetadataFile>> ReadDcpMetadata(
    const ByteSource& source, const OpenOptions& options = {});

// Opens the directory of a `.metadata`, `source`, that was read with the same
// options, without parsing it again. Fails with kUnsupported for
// `__N.metadata`, otherwise as Checkpoint::Open() does.
HAULWAY_EXPORT Result<std::unique_ptr<const FormatReader>> OpenDcpDirectory(
    std::shared_ptr<const ByteSource> source,
    std::shared_ptr<const dcp::MetadataFile> read,
    const OpenOptions& options = {});

// Reads an object that extensions transformed, as it was before: an archive of
// torch.save. Fails with kUnsupported for another extension than zstd, kCorrupt
// or kTruncated for damaged frames, kLimit if the object becomes much larger
// than it is stored; and as reading does.
HAULWAY_EXPORT Result<Buffer> ReadTransformed(
    std::shared_ptr<const ByteSource> file, const dcp::StoredItem& item,
    const ParseLimits& limits = {});

// Writes a data file: items one after another, each compressed as one zstd
// frame, as torch's extension ZStandard does. Commits the sink. Compresses on
// several threads; memory is that of a few compressed items. Returns where each
// item is. Requires: layouts digest by CRC-32 or not at all. Fails as writing
// does.
HAULWAY_EXPORT Result<std::vector<ByteRange>> WriteCompressed(
    std::span<const std::unique_ptr<const Layout>> items, ByteSink& sink,
    const WriteOptions& options = {});

// One chunk, and where its elements lie, row-major, in a file.
struct StoredChunk {
  std::string_view tensor;
  std::span<const int64_t> offsets;
  std::span<const int64_t> sizes;
  std::string_view file;  // A path down from the directory.
  uint64_t offset = 0;    // In the file, in bytes.
  uint64_t nbytes = 0;
};

// The chunks of an open directory, in the order of its tensors; those without
// elements are left out. Reads the heads of those that were not read yet. The
// views live as long as the reader. Fails with kInvalidArgument for a
// checkpoint of another format, with kUnsupported for a chunk in another order
// of elements or one that an extension transformed, else as reading does.
HAULWAY_EXPORT Result<std::vector<StoredChunk>> ListChunks(
    const FormatReader& reader);

}  // namespace haulway
