#include "io/local_source.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/checked.h"
#include "base/text.h"
#include "io/direct_file.h"
#include "io/file_system.h"
#include "io/page_cache.h"
#include "io/temporary_file.h"

namespace haulway {

namespace {

// Returns the path of `name` in the folder of the file `path`.
Result<std::string> NeighbourPath(std::string_view path,
                                  std::string_view name) {
  const auto refuse = [&] {
    return Status(
        Code::kInvalidArgument,
        fmt::format("{} is not a relative path within the folder of {}",
                    Quote(name), QuotePath(path)));
  };
  // Neighbours in /proc would be the process's other files.
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

// O_RDWR: opening a pipe this way does not wait.
Result<UniqueFd> OpenForWriting(const std::string& path) {
  int fd = -1;
  do {
    fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  } while (fd < 0 && errno == EINTR);
  if (fd >= 0) return UniqueFd(fd);
  return Status::FromErrno(
      errno, fmt::format("cannot open {} for writing", QuotePath(path)));
}

Result<std::shared_ptr<const LocalFile>> OpenLocalFile(std::string path,
                                                       bool writable) {
  if (path.find('\0') != path.npos) {
    return Status(Code::kInvalidArgument, "path holds a NUL byte");
  }
  auto opened = writable ? OpenForWriting(path) : OpenForReading(path);
  if (!opened.ok() && opened.status().code() == Code::kNotFound &&
      !FindTemporary(path).empty()) {
    return Status::FromErrno(
        ENOENT, fmt::format("cannot open {}, of which a save goes on, or did "
                            "not end (save again)",
                            QuotePath(path)));
  }
  HAULWAY_ASSIGN(UniqueFd fd, std::move(opened));
  HAULWAY_ASSIGN(const uint64_t size, RegularFileSize(fd.get(), path));
  return std::make_shared<const LocalFile>(std::move(fd), size, std::move(path),
                                           writable);
}

Result<std::shared_ptr<const ByteSource>> MakeSource(
    std::shared_ptr<const LocalFile> file, IoMode io) {
  switch (io) {
    case IoMode::kAuto:
    case IoMode::kPread:
      return MakeBufferedSource(std::move(file));
    case IoMode::kMmap:
      return MakeMappedSource(std::move(file));
    case IoMode::kDirect:
      return MakeDirectSource(std::move(file));
    case IoMode::kUring:
      return MakeUringSource(std::move(file));
    case IoMode::kSnapshot: {
      const ByteRange whole{0, file->size};
      return MakeSnapshotSource(std::move(file), {&whole, 1});
    }
  }
  return Status(Code::kInvalidArgument, "no such mode").Of(file->path);
}

class BufferedSource : public LocalSource {
 public:
  explicit BufferedSource(std::shared_ptr<const LocalFile> file)
      : LocalSource(std::move(file), IoMode::kPread) {}

  Status ReadAt(uint64_t offset, std::span<std::byte> out) const override {
    HAULWAY_TRY(CheckRange(offset, out.size()));
    return ReadFully(file().fd.get(), offset, out);
  }
};

}  // namespace

Status LocalSource::CheckRange(uint64_t offset, uint64_t length) const {
  if (RangeFits(offset, length, size())) return Status();
  return Status(Code::kTruncated,
                fmt::format("read of {} bytes ends past the source: expected "
                            "at most {} bytes in all",
                            length, size()))
      .At(offset);
}

std::optional<FileBytes> LocalSource::InFile(uint64_t offset,
                                             uint64_t /*length*/) const {
  // A snapshot may be older than the current content of the file.
  if (io_ == IoMode::kSnapshot) return std::nullopt;
  return FileBytes{file_->fd.get(), offset};
}

const SourceTraits& LocalFile::traits() const {
  std::call_once(has_traits_, [&] {
    const FileSystem system = FileSystemOf(fd.get());
    traits_.local_file = true;
    traits_.remote = system.remote;
    // To find out may take another open of the file, a round trip there.
    if (!system.remote) traits_.direct_alignment = DirectAlignment(fd.get());
    traits_.direct = traits_.direct_alignment > 0;
    traits_.uring = MayUseUring();
    traits_.file_system = system.name;
  });
  return traits_;
}

SourceTraits LocalSource::Look(std::span<const ByteRange> ranges) const {
  SourceTraits traits = file_->traits();
  traits.views = io_ == IoMode::kMmap || io_ == IoMode::kSnapshot;
  traits.resident = ResidentShare(file_->fd.get(), size(), ranges);
  return traits;
}

Result<std::shared_ptr<const ByteSource>> LocalSource::Reopen(IoMode io) const {
  return MakeSource(file_, io);
}

Result<std::shared_ptr<const ByteSource>> LocalSource::Snapshot(
    std::span<const ByteRange> ranges) const {
  return MakeSnapshotSource(file_, ranges);
}

void LocalSource::DropCache(uint64_t offset, uint64_t length) const {
  if (length == 0) return;  // posix_fadvise(2) takes 0 to mean up to the end.
  ::posix_fadvise(file_->fd.get(), static_cast<off_t>(offset),
                  static_cast<off_t>(length), POSIX_FADV_DONTNEED);
}

Result<std::shared_ptr<const ByteSource>> LocalSource::OpenNeighbour(
    std::string_view name) const {
  HAULWAY_ASSIGN(std::string path, NeighbourPath(file_->path, name));
  HAULWAY_ASSIGN(auto file, OpenLocalFile(std::move(path), file_->writable));
  return MakeSource(std::move(file), io_);
}

std::shared_ptr<const ByteSource> MakeBufferedSource(
    std::shared_ptr<const LocalFile> file) {
  return std::make_shared<const BufferedSource>(std::move(file));
}

Result<std::shared_ptr<const ByteSource>> OpenFileSource(std::string path) {
  HAULWAY_ASSIGN(auto file, OpenLocalFile(std::move(path), /*writable=*/false));
  return MakeBufferedSource(std::move(file));
}

Result<std::shared_ptr<const ByteSource>> OpenMmapSource(std::string path) {
  HAULWAY_ASSIGN(auto file, OpenLocalFile(std::move(path), /*writable=*/false));
  return MakeMappedSource(std::move(file));
}

Result<std::shared_ptr<const ByteSource>> OpenSharedMapping(std::string path) {
  HAULWAY_ASSIGN(auto file, OpenLocalFile(std::move(path), /*writable=*/true));
  return MakeMappedSource(std::move(file));
}

}  // namespace haulway
