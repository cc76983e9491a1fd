// Presents tensors whose elements lie in pieces in several files as one source,
// each complete and row-major.

#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "haulway/format.h"
#include "haulway/source.h"
#include "haulway/status.h"

namespace haulway::ranks {

// A file of a process, and its name for messages.
struct RankFile {
  std::string name;
  uint64_t rank = 0;
  std::unique_ptr<const FormatReader> reader;
};

// A rectangle of a tensor, and where its elements are: the first one at
// `offset` in a storage of a file, the others at strides in elements.
struct Piece {
  uint32_t file = 0;
  uint32_t storage = 0;  // Row of the file.
  uint64_t offset = 0;   // In bytes, in the storage.
  std::vector<int64_t> begin;
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;
};

struct PiecedTensor {
  std::string name;
  uint64_t item_bytes = 1;
  // The shape in which the pieces are rectangles; another view of the elements
  // may be shown.
  std::vector<int64_t> shape;
  std::vector<Piece> pieces;    // Cover the tensor, each element once.
  std::vector<Piece> replicas;  // Are compared with the pieces.
  // The file, not there, of a process that held what the pieces lack; empty if
  // they lack nothing.
  std::string missing = {};
};

// A PiecedSource assembles tensors when they are read: a range of a tensor is
// read only from the pieces that contain part of it, and from their replicas.
// Neighbours in a file are read together, large runs directly into their
// memory. The first read of a storage checks its frame.
//
// Threads: any number at once.
class PiecedSource : public ByteSource {
 public:
  // Requires: storages of pieces are raw, and pieces lie within them.
  PiecedSource(std::vector<RankFile> files, std::vector<PiecedTensor> tensors,
               std::shared_ptr<const ByteSource> beside);

  uint64_t StartOf(uint32_t tensor) const { return starts_[tensor]; }
  uint64_t BytesOf(uint32_t tensor) const { return bytes_[tensor]; }
  const std::vector<PiecedTensor>& tensors() const { return tensors_; }
  const std::vector<RankFile>& files() const { return files_; }

  std::string_view name() const override { return beside_->name(); }
  uint64_t size() const override { return size_; }
  Status ReadAt(uint64_t offset, std::span<std::byte> out) const override;
  Status ReadMany(std::span<const ReadRequest> requests) const override;
  SourceTraits Look(std::span<const ByteRange> ranges) const override;
  std::optional<RemoteStats> remote_stats() const override;

  // Fails with kMismatch, with the file that is missing, for a tensor whose
  // pieces lack elements. So does reading it.
  Status CheckWhole(uint32_t tensor) const;
  // Compares the CRC-32 of every storage with elements of a tensor that states
  // one. Fails with kMismatch, with the place.
  Status CheckDigests(uint32_t tensor) const;

 private:
  friend class PieceReads;
  // Bytes of a piece, from `first` bytes after its first element on.
  struct Stored {
    const Piece* piece = nullptr;
    uint64_t first = 0;
    std::shared_ptr<const std::vector<std::byte>> bytes;
  };

  Status CheckDigest(const Piece& piece) const;

  const std::vector<RankFile> files_;
  const std::vector<PiecedTensor> tensors_;
  const std::shared_ptr<const ByteSource> beside_;
  std::vector<uint64_t> starts_;  // By tensor, ascending.
  std::vector<uint64_t> bytes_;
  uint64_t size_ = 0;
  // By file and storage: whether the frame, and the digest, were checked.
  mutable std::vector<std::vector<std::atomic<uint8_t>>> checked_;
  mutable std::mutex mutex_;
  // The last piece that was read whole, because its elements are not in rows.
  mutable Stored kept_ HAULWAY_GUARDED_BY(mutex_);
};

}  // namespace haulway::ranks
