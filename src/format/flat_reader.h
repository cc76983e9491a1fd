// Shared code of formats that contain only named tensors: an index built row by
// row, and the reports of files without checksums or pickles.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "haulway/dtype.h"
#include "haulway/format.h"
#include "haulway/index.h"
#include "haulway/source.h"
#include "haulway/status.h"
#include "haulway/tree.h"
#include "haulway/verify.h"

namespace haulway {

// A tensor that is its whole storage, as stored in the source. Its views must
// live as long as the reader.
struct FlatTensor {
  std::string_view name;
  DType dtype = DType::kU8;
  std::span<const int64_t> shape;  // In items.
  uint64_t offset = 0;             // Offset of the first byte in the source.
  uint64_t nbytes = 0;
  bool column_major = false;  // The first dimension varies fastest.
};

// Appends the rows of a tensor and of its storage. The strides are allocated in
// `arena`. Fails with kUnsupported if they cannot be expressed.
Status AppendTensor(const FlatTensor& tensor, CheckpointIndex* index,
                    TreeArena* arena);

// Appends the storages and tensors of `part`, whose source begins at offset
// `start` of the source of `index`. Returns the row of the first storage.
uint32_t AppendRows(const CheckpointIndex& part, uint64_t start,
                    CheckpointIndex* index);

// A FlatReader is a dict of tensors in one source, without frames or encodings
// unless the derived class adds them.
class FlatReader : public FormatReader {
 public:
  FlatReader(Format format, std::shared_ptr<const ByteSource> source);

  const CheckpointIndex& index() const override { return index_; }
  const std::shared_ptr<const ByteSource>& source() const override {
    return source_;
  }
  Status CheckFrame(uint32_t storage, std::span<const std::byte> before,
                    std::span<const std::byte> after) const override;
  Status Decode(uint32_t storage, std::span<const std::byte> frame,
                uint64_t offset, std::span<const std::byte> stored,
                std::span<std::byte> out) const override;

  // Reserves memory, so that appending does not reallocate.
  void Reserve(size_t tensors);
  // Adds a tensor, its storage and its entry. Fails with kUnsupported if its
  // strides cannot be expressed.
  Status Append(const FlatTensor& tensor);

  CheckpointIndex& mutable_index() { return index_; }
  TreeArena& arena() { return arena_; }

 private:
  std::shared_ptr<const ByteSource> source_;
  TreeArena arena_;
  CheckpointIndex index_;
};

// Returns the report of opening, for formats without checksums.
Result<VerifyReport> ReportOpening(
    Format format, const ByteSource& source, const VerifyOptions& options,
    const Result<std::unique_ptr<const FormatReader>>& opened);

}  // namespace haulway
