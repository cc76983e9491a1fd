// The reader that OpenDirectory() returns.

#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "dcp/dcp_files.h"
#include "dcp/dcp_metadata.h"
#include "dcp/dcp_objects.h"
#include "dcp/dcp_reader.h"
#include "dcp/dcp_source.h"
#include "haulway/format.h"
#include "haulway/options.h"
#include "haulway/source.h"
#include "haulway/status.h"
#include "haulway/tree.h"

namespace haulway::dcp {

// A DirectoryReader has a storage for each tensor in the metadata, at the same
// row. The storages of tensors within objects follow.
class DirectoryReader final : public FormatReader {
 public:
  // `read`: what is in `source`, if it was read before.
  static Result<std::unique_ptr<const DirectoryReader>> Open(
      std::shared_ptr<const ByteSource> source, const OpenOptions& options,
      std::shared_ptr<const MetadataFile> read = nullptr) {
    std::unique_ptr<DirectoryReader> reader(
        new DirectoryReader(std::move(source), options));
    HAULWAY_TRY(reader->Init(std::move(read)));
    return std::unique_ptr<const DirectoryReader>(std::move(reader));
  }

  // Opens a directory of safetensors shards; see dcp_reader.h.
  static Result<std::unique_ptr<const DirectoryReader>> OpenShards(
      std::vector<ShardFile> files, std::unique_ptr<const MetadataFile> read,
      const OpenOptions& options) {
    std::unique_ptr<DirectoryReader> reader(
        new DirectoryReader(files.front().reader->source(), options));
    HAULWAY_TRY(reader->InitShards(std::move(files), std::move(read)));
    return std::unique_ptr<const DirectoryReader>(std::move(reader));
  }

  const CheckpointIndex& index() const override { return index_; }
  const std::shared_ptr<const ByteSource>& source() const override {
    return source_;
  }

  Status CheckFrame(uint32_t storage, std::span<const std::byte> before,
                    std::span<const std::byte> after) const override {
    const auto place = ObjectOf(storage);
    if (!place.has_value()) return Status();
    return place->reader.CheckFrame(place->row, before, after);
  }
  Status Decode(uint32_t storage, std::span<const std::byte> frame,
                uint64_t offset, std::span<const std::byte> stored,
                std::span<std::byte> out) const override {
    const auto place = ObjectOf(storage);
    if (!place.has_value()) {
      return Status(Code::kInternal, "tensors of this format are not encoded");
    }
    return place->reader.Decode(place->row, frame, offset, stored, out);
  }

  bool has_digests() const override { return metadata_.has_archives; }
  Result<std::vector<PayloadDigest>> Digests(
      uint32_t storage, std::span<const std::byte> before,
      std::span<const std::byte> after) const override;

  const Metadata& metadata() const { return metadata_; }
  const DataFiles& files() const { return *files_; }
  Result<ChunkPlace> PlaceOf(uint32_t tensor, uint32_t chunk) const {
    return chunks_->PlaceOf(tensor, chunk);
  }
  bool IsReordered(uint32_t chunk) const { return chunks_->IsReordered(chunk); }
  // Returns the CRC-32 that the archive of a chunk states for its data.
  Result<uint32_t> StatedCrc32(uint32_t tensor, uint32_t chunk) const;

 private:
  struct InObject {
    const FormatReader& reader;
    uint32_t row;
  };

  DirectoryReader(std::shared_ptr<const ByteSource> source,
                  const OpenOptions& options)
      : beside_(std::move(source)), options_(options) {}

  Status Init(std::shared_ptr<const MetadataFile> read);
  Status InitShards(std::vector<ShardFile> files,
                    std::unique_ptr<const MetadataFile> read);
  void AddMetadata(const ShardFile& file);
  Status JoinChunks();
  Status ReadMetadata();
  Result<Metadata> ReadOne(const ByteSource& file);
  Status CheckFiles() const;
  Status OpenExtra();
  Status ReadMegatron();
  Status AddTensors();
  bool IsLayer(uint32_t tensor) const;
  Status AddObject(OpenedObject* object);
  Status BuildRoot();
  Status CheckChunks(uint32_t tensor) const;
  bool IsTransformed(const StoredTensor& tensor) const;
  std::optional<InObject> ObjectOf(uint32_t storage) const;

  const std::shared_ptr<const ByteSource> beside_;
  const OpenOptions options_;
  std::vector<ShardFile> shards_;  // Only for safetensors shards.
  TreeArena arena_;
  // Owners of the memory that the facts refer to.
  std::vector<std::shared_ptr<const MetadataFile>> files_read_;
  Metadata metadata_;
  std::vector<bool> is_layer_;  // By tensor, if layers were split.
  std::optional<DataFiles> files_;
  std::shared_ptr<ChunkSource> chunks_;
  std::shared_ptr<const ByteSource> source_;  // The same object as chunks_.
  std::vector<OpenedObject> objects_;
  std::vector<uint32_t> first_storages_;  // First storage row by object.
  CheckpointIndex index_;
  uint64_t ranks_ = 0;  // Number of ranks that saved without a coordinator.
};

}  // namespace haulway::dcp
