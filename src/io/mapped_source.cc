#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/posix.h"
#include "base/sigbus_guard.h"
#include "base/text.h"
#include "haulway/options.h"
#include "io/local_source.h"

namespace haulway {

namespace {

// From this size on, a system call costs less than page faults in the mapping,
// each of which maps a few pages.
constexpr uint64_t kLongRead = 64 * kKiB;

class MappedPages {
 public:
  explicit MappedPages(std::span<std::byte> bytes) : bytes_(bytes) {}
  MappedPages(const MappedPages&) = delete;
  MappedPages& operator=(const MappedPages&) = delete;
  ~MappedPages() { ::munmap(bytes_.data(), bytes_.size()); }
  std::span<std::byte> bytes() const { return bytes_; }

 private:
  const std::span<std::byte> bytes_;
};

// A Mapping is what views hold. It holds no descriptor: programs keep tensors
// of more files than a process may have open.
class Mapping {
 public:
  // Requires: `fd` is open until ForgetFile().
  Mapping(std::span<std::byte> bytes, int fd)
      : pages_(bytes), guard_(bytes, fd) {}

  std::span<std::byte> bytes() const { return pages_.bytes(); }
  bool cut() const { return guard_.cut(); }
  void ForgetFile() { guard_.ForgetFile(); }

 private:
  const MappedPages pages_;
  GuardedMapping guard_;  // Declared last: destroyed before the mapping.
};

class MappedSource : public LocalSource {
 public:
  // `mapping` is null for an empty file.
  MappedSource(std::shared_ptr<const LocalFile> file,
               std::shared_ptr<Mapping> mapping)
      : LocalSource(std::move(file), IoMode::kMmap),
        mapping_(std::move(mapping)) {}
  ~MappedSource() override {
    if (mapping_ != nullptr) mapping_->ForgetFile();
  }

  Status ReadAt(uint64_t offset, std::span<std::byte> out) const override {
    HAULWAY_TRY(CheckRange(offset, out.size()));
    if (out.empty()) return Status();
    if (mapping_->cut()) {
      return Status(Code::kTruncated, "the file was cut while it was mapped")
          .At(offset);
    }
    if (out.size() >= kLongRead) {
      return ReadFully(file().fd.get(), offset, out);
    }
    const GuardedSection section;
    std::memcpy(out.data(), mapping_->bytes().data() + offset, out.size());
    return section.Check();
  }
  // Returns no views past the current end of the file, and none after the file
  // was found truncated, so that reading fails instead: users of a view do not
  // expect a signal.
  std::optional<Buffer> View(uint64_t offset, uint64_t length) const override {
    if (mapping_ == nullptr) return Buffer();
    if (mapping_->cut() || !Holds(offset + length)) return std::nullopt;
    return Buffer(mapping_, mapping_->bytes().subspan(offset, length),
                  /*writable=*/true);
  }

 private:
  // Returns whether the file still has at least `end` bytes.
  bool Holds(uint64_t end) const {
    struct stat facts;
    return ::fstat(file().fd.get(), &facts) == 0 &&
           static_cast<uint64_t>(facts.st_size) >= end;
  }

  const std::shared_ptr<Mapping> mapping_;
};

}  // namespace

Result<std::shared_ptr<const ByteSource>> MakeMappedSource(
    std::shared_ptr<const LocalFile> file) {
  std::shared_ptr<Mapping> mapping;
  if (file->size > 0) {
    const int flags = file->writable ? MAP_SHARED : MAP_PRIVATE | MAP_NORESERVE;
    void* address = ::mmap(nullptr, file->size, PROT_READ | PROT_WRITE, flags,
                           file->fd.get(), 0);
    if (address == MAP_FAILED) {
      return Status::FromErrno(errno,
                               fmt::format("cannot map {}", Quote(file->path)));
    }
    mapping = std::make_shared<Mapping>(
        std::span(static_cast<std::byte*>(address), file->size),
        file->fd.get());
  }
  return std::shared_ptr<const ByteSource>(std::make_shared<const MappedSource>(
      std::move(file), std::move(mapping)));
}

}  // namespace haulway
