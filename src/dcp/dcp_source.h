// The tensors of a directory as one source, each whole and row-major.

#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "dcp/dcp_files.h"
#include "dcp/dcp_metadata.h"
#include "haulway/options.h"
#include "haulway/source.h"
#include "haulway/status.h"

namespace haulway::dcp {

// Where the payload of a chunk lies.
struct ChunkPlace {
  uint32_t file = 0;
  uint64_t offset = 0;  // In the file, of the chunk's first element.
  uint64_t nbytes = 0;
};

// A ChunkSource puts tensors together out of their chunks as they are read: a
// range of a tensor is read from the chunks that have some of it, and from no
// others. Neighbours in a file are read at once, and what is large goes
// straight into place. Where the data of a chunk begin is found when it is
// first read, with its pickle checked against the metadata.
//
// Its bytes are those of tensors, one after another, each from a multiple of
// 64; and items that are given as they are.
//
// Threads: any number at once.
class ChunkSource : public ByteSource {
 public:
  // Requires: `metadata` and `files` outlive it.
  ChunkSource(const Metadata& metadata, const DataFiles& files,
              const ParseLimits& limits, std::string name);

  // Where the tensor lies in this source.
  uint64_t StartOf(uint32_t tensor) const { return starts_[tensor]; }
  // Puts the bytes of an item behind the tensors. Before anything is read.
  uint64_t AddItem(const StoredItem& item);

  std::string_view name() const override { return name_; }
  uint64_t size() const override { return size_; }
  Status ReadAt(uint64_t offset, std::span<std::byte> out) const override;
  Status ReadMany(std::span<const ReadRequest> requests) const override;
  SourceTraits Look(std::span<const ByteRange> ranges) const override;
  std::optional<RemoteStats> remote_stats() const override;
  Result<std::shared_ptr<const ByteSource>> OpenNeighbour(
      std::string_view name) const override;

  // Where the data of chunk `row` of the metadata lie; finds that if they were
  // not read yet. Fails as reading does.
  Result<ChunkPlace> PlaceOf(uint32_t tensor, uint32_t row) const;
  // Whether the data of a chunk, whose place was found, are not row-major.
  bool IsReordered(uint32_t row) const;

 private:
  friend class ChunkReads;
  struct Region {
    uint64_t start;
    uint64_t nbytes;
    uint32_t tensor;  // kNoFile: an item.
    StoredItem item;
  };

  const Metadata& metadata_;
  const DataFiles& files_;
  const ParseLimits limits_;
  const std::string name_;
  std::vector<uint64_t> starts_;  // By tensor.
  std::vector<Region> regions_;   // By start.
  uint64_t size_ = 0;
  std::vector<int64_t> StridesOf(uint32_t row) const;
  void NoteFound(uint32_t row, uint64_t payload,
                 const std::vector<int64_t>& strides) const;

  // By chunk: where its data begin in its item, and whether they are in another
  // order than row-major; UINT64_MAX: not known yet.
  mutable std::vector<std::atomic<uint64_t>> payloads_;
  mutable std::mutex mutex_;
  // By chunk, of those in another order.
  mutable std::map<uint32_t, std::vector<int64_t>> strides_;
  mutable std::atomic<uint64_t> usual_payload_;
};

// Returns the size of a chunk's elements, in bytes.
uint64_t BytesOf(const StoredTensor& tensor, const Chunk& chunk);

}  // namespace haulway::dcp
