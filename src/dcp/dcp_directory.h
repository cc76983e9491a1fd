// The reader behind OpenDirectory().

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

// A DirectoryReader has a storage for each tensor of the metadata, at the same
// row; those of tensors within objects follow.
class DirectoryReader final : public FormatReader {
 public:
  static Result<std::unique_ptr<const DirectoryReader>> Open(
      std::shared_ptr<const ByteSource> source, const OpenOptions& options) {
    std::unique_ptr<DirectoryReader> reader(
        new DirectoryReader(std::move(source), options));
    HAULWAY_TRY(reader->Init());
    return std::unique_ptr<const DirectoryReader>(std::move(reader));
  }

  // Of shards in safetensors files; see OpenShards().
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
  // The CRC-32 that the archive of a chunk states of its data.
  Result<uint32_t> StatedCrc32(uint32_t tensor, uint32_t chunk) const;

 private:
  struct InObject {
    const FormatReader& reader;
    uint32_t row;
  };

  DirectoryReader(std::shared_ptr<const ByteSource> source,
                  const OpenOptions& options)
      : beside_(std::move(source)), options_(options) {}

  Status Init();
  Status InitShards(std::vector<ShardFile> files,
                    std::unique_ptr<const MetadataFile> read);
  void AddMetadata(const ShardFile& file);
  Status JoinChunks();
  Status ReadMetadata();
  Result<Metadata> ReadOne(const ByteSource& file);
  Status CheckFiles() const;
  Status OpenExtra();
  Status AddTensors();
  Status AddObject(OpenedObject* object);
  Status BuildRoot();
  Status CheckChunks(uint32_t tensor) const;
  std::optional<InObject> ObjectOf(uint32_t storage) const;

  const std::shared_ptr<const ByteSource> beside_;
  const OpenOptions options_;
  std::vector<ShardFile> shards_;  // Of safetensors files; else empty.
  TreeArena arena_;
  // What the facts refer to.
  std::vector<std::unique_ptr<const MetadataFile>> files_read_;
  Metadata metadata_;
  std::optional<DataFiles> files_;
  std::shared_ptr<ChunkSource> chunks_;
  std::shared_ptr<const ByteSource> source_;  // That.
  std::vector<OpenedObject> objects_;
  std::vector<uint32_t> first_storages_;  // By object.
  CheckpointIndex index_;
  uint64_t ranks_ = 0;  // That saved on their own.
};

}  // namespace haulway::dcp
