// A checkpoint whose tensors are assembled from the files of processes.

#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "haulway/format.h"
#include "haulway/index.h"
#include "haulway/source.h"
#include "haulway/status.h"
#include "haulway/tree.h"
#include "ranks/pieced_source.h"

namespace haulway::ranks {

// What the tensors of a checkpoint are before they have places.
class Assembly {
 public:
  // A tensor, as users see it. Its pieces lie in `tensor.shape`.
  struct Row {
    std::string name;
    TensorInfo info;  // Shape and strides are set by AssembledReader.
    std::vector<int64_t> shape;
    uint32_t pieced = 0;  // Row of `tensors`: tied tensors share one.
  };

  std::vector<RankFile> files;
  std::vector<PiecedTensor> tensors;
  std::vector<Row> rows;
  std::vector<Fact> facts;
  // The object, or nothing for a flat dict. Its tensors are rows of the first
  // file.
  std::optional<Value> root;
  // Which of `rows` a row of the first file is; only if there is an object.
  std::unordered_map<uint32_t, uint32_t> row_of;
};

class AssembledReader final : public FormatReader {
 public:
  // `list`: the source that lists the files, with the name for messages. Fails
  // with kUnsupported if the object has a storage or tensor that is none of the
  // rows.
  static Result<std::unique_ptr<const AssembledReader>> Make(
      Format format, Assembly assembly, std::shared_ptr<const ByteSource> list);

  const PiecedSource& pieced() const { return *pieced_; }
  const CheckpointIndex& index() const override { return index_; }
  const std::shared_ptr<const ByteSource>& source() const override {
    return source_;
  }
  Status CheckFrame(uint32_t storage, std::span<const std::byte> before,
                    std::span<const std::byte> after) const override;
  Status Decode(uint32_t storage, std::span<const std::byte> frame,
                uint64_t offset, std::span<const std::byte> stored,
                std::span<std::byte> out) const override;
  bool has_digests() const override { return true; }
  // Compares the checksums of the files; returns no digest of the whole.
  Result<std::vector<PayloadDigest>> Digests(
      uint32_t storage, std::span<const std::byte> before,
      std::span<const std::byte> after) const override;

 private:
  AssembledReader() = default;
  Status AddRows(const Assembly& assembly);

  TreeArena arena_;
  std::shared_ptr<const PiecedSource> pieced_;
  std::shared_ptr<const ByteSource> source_;  // The same object.
  CheckpointIndex index_;
  std::vector<uint32_t> pieced_of_;  // By storage.
};

// Fails unless a tensor's bytes lie in its file as they are in memory.
Status CheckIsRaw(const CheckpointIndex& index, const TensorInfo& tensor);

// Fails with kCorrupt, with the tensor, unless its pieces cover it, each
// element once. Passes over those that lack a file.
Status CheckCover(std::span<const PiecedTensor> tensors);

}  // namespace haulway::ranks
