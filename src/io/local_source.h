// Local files: the code that all I/O modes share.

#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>

#include "base/posix.h"
#include "haulway/source.h"

namespace haulway {

// A LocalFile is an open regular file, with its size at the time of opening.
struct LocalFile {
  LocalFile(UniqueFd open, uint64_t bytes, std::string name, bool may_write)
      : fd(std::move(open)),
        size(bytes),
        path(std::move(name)),
        writable(may_write) {}

  const UniqueFd fd;
  const uint64_t size;
  const std::string path;
  const bool writable;  // Whether a mapping writes to the file.

  // Returns the traits of the file system, which are determined once.
  // `resident` and `views` are not set.
  const SourceTraits& traits() const;

 private:
  mutable std::once_flag has_traits_;
  mutable SourceTraits traits_;
};

// A LocalSource is a LocalFile that is read in one I/O mode.
class LocalSource : public ByteSource {
 public:
  LocalSource(std::shared_ptr<const LocalFile> file, IoMode io)
      : file_(std::move(file)), io_(io) {}

  std::string_view name() const override { return file_->path; }
  uint64_t size() const override { return file_->size; }
  std::optional<FileBytes> InFile(uint64_t offset,
                                  uint64_t length) const override;
  SourceTraits Look(std::span<const ByteRange> ranges) const override;
  Result<std::shared_ptr<const ByteSource>> Reopen(IoMode io) const override;
  Result<std::shared_ptr<const ByteSource>> Snapshot(
      std::span<const ByteRange> ranges) const override;
  void DropCache(uint64_t offset, uint64_t length) const override;
  Result<std::shared_ptr<const ByteSource>> OpenNeighbour(
      std::string_view name) const override;

 protected:
  const LocalFile& file() const { return *file_; }
  // Fails with kTruncated for a range that ends past the file.
  Status CheckRange(uint64_t offset, uint64_t length) const;

 private:
  const std::shared_ptr<const LocalFile> file_;
  const IoMode io_;
};

// Make the sources of the I/O modes. Each fails with kUnsupported if the file
// or the system does not support the mode.
std::shared_ptr<const ByteSource> MakeBufferedSource(
    std::shared_ptr<const LocalFile> file);
Result<std::shared_ptr<const ByteSource>> MakeMappedSource(
    std::shared_ptr<const LocalFile> file);
Result<std::shared_ptr<const ByteSource>> MakeDirectSource(
    std::shared_ptr<const LocalFile> file);
// Reads through the page cache if O_DIRECT is refused.
Result<std::shared_ptr<const ByteSource>> MakeUringSource(
    std::shared_ptr<const LocalFile> file);
// Makes a source with views of these ranges. The views keep the current
// content.
Result<std::shared_ptr<const ByteSource>> MakeSnapshotSource(
    std::shared_ptr<const LocalFile> file, std::span<const ByteRange> ranges);

// Opens a file whose views write to it.
Result<std::shared_ptr<const ByteSource>> OpenSharedMapping(std::string path);

// Returns whether this process may create an io_uring(7).
bool MayUseUring();

}  // namespace haulway
