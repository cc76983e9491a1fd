// Presents the tensors of a directory as one source, each complete and
// row-major.

#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "dcp/dcp_chunk_cursors.h"
#include "dcp/dcp_files.h"
#include "dcp/dcp_metadata.h"
#include "haulway/options.h"
#include "haulway/source.h"
#include "haulway/status.h"

namespace haulway::dcp {

// Where the payload of a chunk is.
struct ChunkPlace {
  uint32_t file = 0;
  uint64_t offset = 0;  // Offset of the chunk's first element in the file.
  uint64_t nbytes = 0;
};

// A ChunkSource assembles tensors from their chunks when they are read: a range
// of a tensor is read only from the chunks that contain part of it. Neighbours
// in a file are read together, and large reads go directly to their
// destination. The first read of a chunk locates its data, and checks its
// pickle against the metadata.
//
// The source consists of the tensors, each at a multiple of 64, and then of
// items whose bytes are unchanged.
//
// Threads: any number at once.
class ChunkSource : public ByteSource {
 public:
  // Requires: `metadata` and `files` outlive this.
  ChunkSource(const Metadata& metadata, const DataFiles& files,
              const ParseLimits& limits, std::string name);

  // Returns the offset of the tensor in this source.
  uint64_t StartOf(uint32_t tensor) const { return starts_[tensor]; }
  // Appends the bytes of an item. Call it before anything is read.
  uint64_t AddItem(const StoredItem& item);

  std::string_view name() const override { return name_; }
  uint64_t size() const override { return size_; }
  Status ReadAt(uint64_t offset, std::span<std::byte> out) const override;
  Status ReadMany(std::span<const ReadRequest> requests) const override;
  SourceTraits Look(std::span<const ByteRange> ranges) const override;
  std::optional<RemoteStats> remote_stats() const override;
  Result<std::shared_ptr<const ByteSource>> OpenNeighbour(
      std::string_view name) const override;

  // Returns where the data of chunk `row` of the metadata is. Locates it if it
  // was not read yet. Fails as reading does, and with kUnsupported for a chunk
  // that an extension transformed.
  Result<ChunkPlace> PlaceOf(uint32_t tensor, uint32_t row) const;
  // Returns whether the data of a chunk is not row-major. Requires: PlaceOf()
  // or a read located it.
  bool IsReordered(uint32_t row) const;

 private:
  friend class ChunkReads;
  struct Region {
    uint64_t start;
    uint64_t nbytes;
    uint32_t tensor;  // kNoFile for an item.
    StoredItem item;
  };

  const Metadata& metadata_;
  const DataFiles& files_;
  const ParseLimits limits_;
  const std::string name_;
  std::vector<uint64_t> starts_;  // Start by tensor.
  std::vector<Region> regions_;   // Sorted by start.
  uint64_t size_ = 0;
  std::vector<int64_t> StridesOf(uint32_t row) const;
  void NoteFound(uint32_t row, uint64_t payload,
                 const std::vector<int64_t>& strides) const;

  // By chunk: where its data begins in its item, and a flag for data that is
  // not row-major; UINT64_MAX if not known yet.
  mutable std::vector<std::atomic<uint64_t>> payloads_;
  mutable std::mutex mutex_;
  // By chunk, for chunks that are not row-major.
  mutable std::map<uint32_t, std::vector<int64_t>> strides_;
  mutable std::atomic<uint64_t> usual_payload_;
  // Of chunks that extensions transformed.
  mutable ChunkCursors cursors_;
  bool has_transforms_ = false;
};

// Returns the size of a chunk's elements in bytes.
uint64_t BytesOf(const StoredTensor& tensor, const Chunk& chunk);

}  // namespace haulway::dcp
