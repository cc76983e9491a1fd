// The implementation of the public ArchiveReader, with more functions that
// formats need.

#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "haulway/archive.h"
#include "zip/zip_reader.h"

namespace haulway::zip {

class Archive final : public ArchiveReader {
 public:
  static Result<std::shared_ptr<const Archive>> Open(
      std::shared_ptr<const ByteSource> source, const ArchiveOptions& options,
      std::span<const std::string_view> prefetch = {});

  // The records in `prefetch`, which Open() reads together with those that it
  // needs itself; nullopt for those that do not exist.
  const std::vector<std::optional<Buffer>>& prefetched() const {
    return prefetched_;
  }

  std::string_view archive_name() const override { return name_; }
  uint64_t version() const override { return version_; }
  std::string_view serialization_id() const override {
    return serialization_id_;
  }
  const ByteSource& source() const override { return *zip_->source(); }
  const std::vector<RecordInfo>& records() const override;
  const RecordInfo* Find(std::string_view name) const override;
  Result<Buffer> Read(std::string_view name) const override;
  Status ReadInto(std::string_view name,
                  std::span<std::byte> out) const override;
  Status ReadChunked(std::string_view name, uint64_t chunk_bytes,
                     const CopyFunction& copy) const override;
  Status ReadParallel(
      std::string_view name,
      std::span<const std::shared_ptr<const ByteSource>> additional,
      uint64_t threshold, std::span<std::byte> out) const override;
  Result<std::unique_ptr<ChunkReader>> OpenChunks(
      std::string_view name) const override;
  Result<uint64_t> DataOffset(std::string_view name) const override;

  const ZipReader& zip() const { return *zip_; }
  // Returns whether an entry is one of records().
  bool IsRecord(const Entry& entry) const;
  // Returns the entry of a record, or null. Ignores case if lenient.
  const Entry* FindEntry(std::string_view name) const;
  // Returns the entry of `folder` + `name`. Tries the entry after `last` first,
  // because records are mostly requested in file order.
  const Entry* FindEntryAfter(const Entry* last, std::string_view folder,
                              std::string_view name) const;
  // Returns whether all payload offsets were computed, and none was read from
  // the file.
  bool offsets_computed() const { return offsets_computed_; }
  uint64_t alignment() const { return alignment_; }

  // Returns records as Read() does, with one vectored read; nullopt for those
  // that do not exist.
  Result<std::vector<std::optional<Buffer>>> ReadRecords(
      std::span<const std::string_view> names) const;

 private:
  explicit Archive(const ArchiveOptions& options) : options_(options) {}
  Status Init(std::shared_ptr<const ByteSource> source,
              std::span<const std::string_view> prefetch);
  bool IsInFolder(const Entry& entry) const;
  // Finds the folder, and checks that the records are in it (rule Z16).
  Status FindFolder();
  Status FindOffsets();
  Status ReadVersion(std::span<const std::string_view> prefetch);
  // Checks a record by rule Z21.
  Status CheckCrc(const Entry& entry, std::span<const std::byte> bytes) const;
  Result<const Entry*> Existing(std::string_view name) const;
  Status CopyChunks(std::string_view name, uint64_t chunk_bytes,
                    const CopyFunction& copy) const;

  const ArchiveOptions options_;
  std::shared_ptr<ZipReader> zip_;
  std::string name_;
  // Made when they are first asked for; checkpoints need the entries only.
  mutable std::once_flag listed_;
  mutable std::vector<RecordInfo> records_;
  std::vector<std::optional<Buffer>> prefetched_;
  uint64_t version_ = 0;
  std::string serialization_id_;
  bool offsets_computed_ = false;
  uint64_t alignment_ = 64;
};

}  // namespace haulway::zip
