#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstring>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "base/no_memory.h"
#include "base/posix.h"
#include "base/text.h"
#include "base/thread_pool.h"
#include "haulway/open.h"
#include "haulway/options.h"

// How: the file is cut into blocks, which threads bring in any order. The state
// file holds a head, which names the object, and then the number of each block
// that is there, a line each. A block is named only after its bytes are on the
// disk, so that whatever ends the run, what the state names is there. The state
// is locked as long as somebody works on it.
//
// What was tried instead: one stream and its length as the state, as curl -C
// does, which is one connection, and cannot tell whether it is the same object.

namespace haulway {

namespace {

constexpr uint64_t kBlockBytes = 4 * kMiB;
// Bytes are brought to the disk when so many wait for it.
constexpr uint64_t kSyncedTogether = 64 * kMiB;
constexpr std::string_view kMagic = "haulway-part 1";
constexpr uint64_t kMostStateBytes = 64 * kMiB;

struct Names {
  std::string target;
  std::string folder;
  std::string part;
  std::string state;
};

Names NamesOf(std::string_view path) {
  const size_t slash = path.rfind('/');
  const std::string folder(slash == path.npos ? "" : path.substr(0, slash + 1));
  const std::string_view name =
      slash == path.npos ? path : path.substr(slash + 1);
  Names names;
  names.target = path;
  names.folder = folder.empty() ? "." : folder;
  names.part = fmt::format("{}.{}.haulway-part", folder, name);
  names.state = names.part + ".state";
  return names;
}

Result<UniqueFd> OpenForWriting(const std::string& path) {
  UniqueFd fd(
      ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666));
  if (fd.get() < 0) {
    return Status::FromErrno(errno,
                             fmt::format("cannot write {}", Quote(path)));
  }
  return fd;
}

Status WriteAll(int fd, uint64_t offset, std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text.data(), text.size()));
  return WriteFully(fd, offset, {&bytes, 1});
}

// What an object is recognised by, on one line.
std::string HeadOf(const ByteSource& source, std::string_view version) {
  return fmt::format("{}\n{}\n{}\n{}\n", kMagic, source.size(), kBlockBytes,
                     Escape(version));
}

class Downloading {
 public:
  Downloading(const ByteSource& source, std::string_view path,
              const DownloadOptions& options)
      : source_(source),
        names_(NamesOf(path)),
        options_(options),
        traits_(source.Look({})) {
    const auto remote = source.remote_stats();
    if (remote.has_value()) version_ = remote->version;
  }

  Result<DownloadStats> Run() {
    const auto start = std::chrono::steady_clock::now();
    struct stat facts;
    if (::stat(names_.target.c_str(), &facts) == 0 && S_ISDIR(facts.st_mode)) {
      return Status(Code::kInvalidArgument,
                    fmt::format("{} is a folder: expected the name of a file",
                                Quote(names_.target)));
    }
    HAULWAY_ASSIGN(state_, OpenForWriting(names_.state));
    // Whoever was done between the two has removed what is locked here.
    struct stat named;
    if (::flock(state_.get(), LOCK_EX | LOCK_NB) != 0 ||
        ::fstat(state_.get(), &facts) != 0 ||
        ::stat(names_.state.c_str(), &named) != 0 ||
        facts.st_dev != named.st_dev || facts.st_ino != named.st_ino) {
      return Status(Code::kUnavailable, fmt::format("another process brings {}",
                                                    Quote(names_.target)));
    }
    HAULWAY_ASSIGN(part_, OpenForWriting(names_.part));
    HAULWAY_TRY(ReadState());
    HAULWAY_TRY(Bring());
    HAULWAY_TRY(Finish());
    stats_.bytes = source_.size();
    if (const auto remote = source_.remote_stats()) {
      stats_.requests = remote->requests;
      stats_.retries = remote->retries;
    }
    stats_.seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start)
            .count();
    return stats_;
  }

 private:
  uint64_t blocks() const {
    return (source_.size() + kBlockBytes - 1) / kBlockBytes;
  }
  uint64_t LengthOf(uint64_t block) const {
    return std::min(kBlockBytes, source_.size() - block * kBlockBytes);
  }

  // What an earlier run has left, if it is of this object.
  Status ReadState() {
    there_.assign(blocks(), false);
    const std::string head = HeadOf(source_, version_);
    const off_t size = ::lseek(state_.get(), 0, SEEK_END);
    const off_t part = ::lseek(part_.get(), 0, SEEK_END);
    std::string text;
    if (size > 0 && static_cast<uint64_t>(size) <= kMostStateBytes) {
      text.resize(static_cast<size_t>(size));
      HAULWAY_TRY(
          ReadFully(state_.get(), 0, std::as_writable_bytes(std::span(text))));
    }
    const bool same = !version_.empty() && text.starts_with(head) &&
                      part == static_cast<off_t>(source_.size());
    if (!same) {
      if (::ftruncate(state_.get(), 0) != 0 ||
          ::ftruncate(part_.get(), 0) != 0 ||
          ::ftruncate(part_.get(), static_cast<off_t>(source_.size())) != 0) {
        return Status::FromErrno(
            errno, fmt::format("cannot write {}", Quote(names_.part)));
      }
      HAULWAY_TRY(WriteAll(state_.get(), 0, head));
      state_bytes_ = head.size();
      return Status();
    }
    size_t at = head.size();
    state_bytes_ = at;
    while (true) {
      const size_t end = text.find('\n', at);
      if (end == text.npos) break;  // A line that was cut does not count.
      uint64_t block = 0;
      const auto [rest, error] =
          std::from_chars(text.data() + at, text.data() + end, block);
      if (error != std::errc() || rest != text.data() + end ||
          block >= there_.size()) {
        break;
      }
      if (!there_[block]) {
        there_[block] = true;
        stats_.resumed_bytes += LengthOf(block);
      }
      at = end + 1;
      state_bytes_ = at;
    }
    return Status();
  }

  Status Bring() {
    std::vector<uint64_t> missing;
    for (uint64_t block = 0; block < there_.size(); ++block) {
      if (!there_[block]) missing.push_back(block);
    }
    done_ = stats_.resumed_bytes;
    int threads = options_.threads;
    if (threads == 0) threads = traits_.parallel;
    if (threads == 0) threads = UsableCpus();
    const CancelScope scope(options_.cancel);
    Status status = ParallelFor(missing.size(), threads, [&](uint64_t i) {
      return BringBlock(missing[i]);
    });
    // What came counts for the next run, whatever ended this one.
    const std::lock_guard lock(mutex_);
    Status noted = NoteBlocks();
    return status.ok() ? std::move(noted) : std::move(status);
  }

  Status BringBlock(uint64_t block) {
    if (CancelScope::IsCancelled()) {
      return Status(Code::kCancelled, "downloading was cancelled");
    }
    const uint64_t offset = block * kBlockBytes;
    const uint64_t length = LengthOf(block);
    HAULWAY_ASSIGN(const Buffer bytes, AllocateBuffer(length));
    HAULWAY_TRY(source_.ReadAt(offset, bytes.mutable_bytes()));
    const std::span<const std::byte> whole = bytes.bytes();
    HAULWAY_TRY(WriteFully(part_.get(), offset, {&whole, 1}));
    const std::lock_guard lock(mutex_);
    brought_.push_back(block);
    done_ += length;
    if (options_.progress) options_.progress(done_, source_.size());
    if (brought_.size() * kBlockBytes < kSyncedTogether) return Status();
    return NoteBlocks();
  }

  // With the lock held.
  Status NoteBlocks() {
    if (brought_.empty()) return Status();
    if (::fdatasync(part_.get()) != 0) {
      return Status::FromErrno(
          errno, fmt::format("cannot write {}", Quote(names_.part)));
    }
    std::string lines;
    for (const uint64_t block : brought_) lines += fmt::format("{}\n", block);
    HAULWAY_TRY(WriteAll(state_.get(), state_bytes_, lines));
    state_bytes_ += lines.size();
    brought_.clear();
    return Status();
  }

  Status Finish() {
    if (options_.check) {
      Status status = options_.check(names_.part);
      if (!status.ok()) {
        ::unlink(names_.part.c_str());
        ::unlink(names_.state.c_str());
        return status;
      }
    }
    if (::fsync(part_.get()) != 0 ||
        ::rename(names_.part.c_str(), names_.target.c_str()) != 0) {
      return Status::FromErrno(
          errno, fmt::format("cannot write {}", Quote(names_.target)));
    }
    ::unlink(names_.state.c_str());
    const UniqueFd folder(
        ::open(names_.folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (folder.get() >= 0) ::fsync(folder.get());
    return Status();
  }

  const ByteSource& source_;
  const Names names_;
  const DownloadOptions& options_;
  const SourceTraits traits_;
  std::string version_;
  DownloadStats stats_;
  UniqueFd state_;
  UniqueFd part_;
  std::vector<bool> there_;
  std::mutex mutex_;
  std::vector<uint64_t> brought_;  // And not noted yet.
  uint64_t state_bytes_ = 0;
  uint64_t done_ = 0;
};

}  // namespace

Result<DownloadStats> Download(const ByteSource& source, std::string_view path,
                               const DownloadOptions& options) {
  auto result = OrNoMemory([&]() -> Result<DownloadStats> {
    return Downloading(source, path, options).Run();
  });
  return result;
}

}  // namespace haulway
