#include "versions/copy_files.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/posix.h"
#include "haulway/folder.h"
#include "haulway/options.h"

namespace haulway {

namespace {

constexpr uint64_t kAtATime = 4 * kMiB;

// Calls read(offset, out) for all bytes, and writes what it reads.
template <class Read>
Status CopyPieces(int to, uint64_t bytes, const Read& read) {
  std::vector<std::byte> memory(std::min(bytes, kAtATime));
  for (uint64_t at = 0; at < bytes;) {
    const auto piece =
        std::span(memory).first(std::min<uint64_t>(kAtATime, bytes - at));
    HAULWAY_TRY(read(at, piece));
    const std::span<const std::byte> written = piece;
    HAULWAY_TRY(WriteFully(to, at, {&written, 1}));
    at += piece.size();
  }
  return Status();
}

}  // namespace

Status CopyFile(int to, int from, uint64_t bytes) {
  const Status copied = CopyFully(to, 0, from, 0, bytes);
  if (copied.code() != Code::kUnsupported) return copied;
  return CopyPieces(to, bytes, [&](uint64_t at, std::span<std::byte> out) {
    return ReadFully(from, at, out);
  });
}

Result<uint64_t> CopyTo(const std::string& path, const std::string& uri,
                        const SourceOptions& options, Durability durability) {
  const UniqueFd to(
      ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (to.get() < 0) {
    return Status::FromErrno(errno, "cannot make the file").Of(path);
  }
  uint64_t bytes = 0;
  Status status;
  if (const auto local = LocalPath(uri)) {
    HAULWAY_ASSIGN(const UniqueFd from, OpenForReading(*local));
    HAULWAY_ASSIGN(bytes, RegularFileSize(from.get(), *local));
    status = CopyFile(to.get(), from.get(), bytes);
  } else {
    HAULWAY_ASSIGN(const auto source, OpenSource(uri, options));
    bytes = source->size();
    status =
        CopyPieces(to.get(), bytes, [&](uint64_t at, std::span<std::byte> out) {
          return source->ReadAt(at, out);
        });
  }
  if (status.ok() && durability == Durability::kFull &&
      RetryInterrupted([&] { return ::fsync(to.get()); }) != 0) {
    status = Status::FromErrno(errno, "cannot sync the file");
  }
  if (!status.ok()) return std::move(status).Of(path);
  return bytes;
}

}  // namespace haulway
