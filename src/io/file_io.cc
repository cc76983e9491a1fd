#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/checked.h"
#include "base/posix.h"
#include "base/text.h"
#include "haulway/source.h"

namespace haulway {

namespace {

// The path of `name` beside the file `path`.
Result<std::string> NeighbourPath(std::string_view path,
                                  std::string_view name) {
  const auto refuse = [&] {
    return Status(Code::kInvalidArgument,
                  fmt::format("{} is no path down from the folder of {}",
                              Quote(name), Quote(path)));
  };
  // What /proc shows as neighbours are the process's other files.
  if (path.starts_with("/proc/")) {
    return Status(Code::kUnsupported, "no files lie beside this source")
        .Of(path);
  }
  if (name.find('\0') != name.npos) return refuse();
  for (size_t at = 0; at <= name.size();) {
    const size_t end = std::min(name.find('/', at), name.size());
    const std::string_view part = name.substr(at, end - at);
    if (part.empty() || part == "." || part == "..") return refuse();
    at = end + 1;
  }
  const size_t slash = path.rfind('/');
  const std::string_view folder =
      slash == path.npos ? "" : path.substr(0, slash + 1);
  return fmt::format("{}{}", folder, name);
}

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
  Result<std::shared_ptr<const ByteSource>> OpenNeighbour(
      std::string_view name) const override {
    HAULWAY_ASSIGN(std::string path, NeighbourPath(path_, name));
    return OpenFileSource(std::move(path));
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

class MappedSource : public ByteSource {
 public:
  MappedSource(std::shared_ptr<const ByteSource> bytes, std::string path)
      : bytes_(std::move(bytes)), path_(std::move(path)) {}

  std::string_view name() const override { return path_; }
  uint64_t size() const override { return bytes_->size(); }
  Status ReadAt(uint64_t offset, std::span<std::byte> out) const override {
    return bytes_->ReadAt(offset, out);
  }
  std::optional<Buffer> View(uint64_t offset, uint64_t length) const override {
    return bytes_->View(offset, length);
  }
  Result<std::shared_ptr<const ByteSource>> OpenNeighbour(
      std::string_view name) const override {
    HAULWAY_ASSIGN(std::string path, NeighbourPath(path_, name));
    return OpenMmapSource(std::move(path));
  }

 private:
  const std::shared_ptr<const ByteSource> bytes_;
  const std::string path_;
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
  auto source = MakeBufferSource(
      Buffer(std::move(owner), bytes, /*writable=*/true), path);
  return std::shared_ptr<const ByteSource>(
      std::make_shared<const MappedSource>(std::move(source), std::move(path)));
}

}  // namespace haulway
