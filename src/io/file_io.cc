#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>

#include <cerrno>
#include <utility>

#include "base/checked.h"
#include "base/posix.h"
#include "base/text.h"
#include "haulway/source.h"

namespace haulway {

namespace {

class FileSource : public ByteSource {
 public:
  FileSource(UniqueFd fd, uint64_t size, std::string path)
      : fd_(std::move(fd)), size_(size), path_(std::move(path)) {}

  std::string_view name() const override { return path_; }
  uint64_t size() const override { return size_; }
  Status ReadAt(uint64_t offset, std::span<std::byte> out) const override {
    if (!RangeFits(offset, out.size(), size_)) {
      return Status(Code::kTruncated,
                    fmt::format("read of {} bytes ends past the source: "
                                "expected at most {} bytes in all",
                                out.size(), size_))
          .At(offset);
    }
    return ReadFully(fd_.get(), offset, out);
  }

 private:
  const UniqueFd fd_;
  const uint64_t size_;
  const std::string path_;
};

class MappedFile {
 public:
  MappedFile(void* address, size_t bytes) : address_(address), bytes_(bytes) {}
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile() { ::munmap(address_, bytes_); }

 private:
  void* const address_;
  const size_t bytes_;
};

}  // namespace

Result<std::shared_ptr<const ByteSource>> OpenFileSource(std::string path) {
  HAULWAY_ASSIGN(UniqueFd fd, OpenForReading(path));
  HAULWAY_ASSIGN(const uint64_t size, RegularFileSize(fd.get(), path));
  return std::shared_ptr<const ByteSource>(
      std::make_shared<const FileSource>(std::move(fd), size, std::move(path)));
}

Result<std::shared_ptr<const ByteSource>> OpenMmapSource(std::string path) {
  HAULWAY_ASSIGN(const UniqueFd fd, OpenForReading(path));
  HAULWAY_ASSIGN(const uint64_t size, RegularFileSize(fd.get(), path));
  if (size == 0) return MakeBufferSource(Buffer(), std::move(path));
  void* address = ::mmap(nullptr, size, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_NORESERVE, fd.get(), 0);
  if (address == MAP_FAILED) {
    return Status::FromErrno(errno, fmt::format("cannot map {}", Quote(path)));
  }
  auto owner = std::make_shared<const MappedFile>(address, size);
  const std::span<std::byte> bytes(static_cast<std::byte*>(address), size);
  return MakeBufferSource(Buffer(std::move(owner), bytes, /*writable=*/true),
                          std::move(path));
}

}  // namespace haulway
