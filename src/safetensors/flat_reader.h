// From safetensors headers to the index of a checkpoint.

#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "haulway/buffer.h"
#include "haulway/format.h"
#include "haulway/source.h"
#include "haulway/status.h"
#include "haulway/tree.h"
#include "haulway/verify.h"
#include "safetensors/safetensors_header.h"

namespace haulway::safetensors {

// The header of a file, and where its data starts.
struct OpenedHeader {
  Header header;
  uint64_t json_bytes = 0;
  uint64_t data_offset = 0;
};

// A FlatReader is a dict of tensors in one source, made from one header or
// from several.
class FlatReader : public FormatReader {
 public:
  explicit FlatReader(std::shared_ptr<const ByteSource> source);

  const CheckpointIndex& index() const override { return index_; }
  const std::shared_ptr<const ByteSource>& source() const override {
    return source_;
  }
  // There are no frames and no encodings.
  Status CheckFrame(uint32_t storage, std::span<const std::byte> before,
                    std::span<const std::byte> after) const override;
  Status Decode(uint32_t storage, std::span<const std::byte> frame,
                uint64_t offset, std::span<const std::byte> stored,
                std::span<std::byte> out) const override;

  // Reads the header of `file`, which lives as long as the reader.
  Result<OpenedHeader> ReadHeader(const ByteSource& file,
                                  const OpenOptions& options);
  // Makes room, so that appending never has to grow what is there.
  void Reserve(size_t tensors);
  // Adds a tensor whose file's data starts at `data_offset` of the source.
  // Fails with kUnsupported if its strides cannot be expressed.
  Status Append(const HeaderTensor& tensor, uint64_t data_offset);

  CheckpointIndex& mutable_index() { return index_; }
  TreeArena& arena() { return arena_; }

 private:
  std::shared_ptr<const ByteSource> source_;
  TreeArena arena_;
  CheckpointIndex index_;
};

// The findings of opening, for formats without checksums.
Result<VerifyReport> ReportOpening(
    const ByteSource& source, const VerifyOptions& options,
    const Result<std::unique_ptr<const FormatReader>>& opened);
Result<ScanReport> ReportNoPickles(
    const ByteSource& source,
    const Result<std::unique_ptr<const FormatReader>>& opened);

}  // namespace haulway::safetensors
