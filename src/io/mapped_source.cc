#include <fmt/format.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/text.h"
#include "io/local_source.h"

namespace haulway {

namespace {

class Mapping {
 public:
  Mapping(void* address, size_t bytes) : address_(address), bytes_(bytes) {}
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping() { ::munmap(address_, bytes_); }

 private:
  void* const address_;
  const size_t bytes_;
};

class MappedSource : public LocalSource {
 public:
  MappedSource(std::shared_ptr<const LocalFile> file, Buffer bytes)
      : LocalSource(std::move(file), IoMode::kMmap), bytes_(std::move(bytes)) {}

  Status ReadAt(uint64_t offset, std::span<std::byte> out) const override {
    HAULWAY_TRY(CheckRange(offset, out.size()));
    if (out.empty()) return Status();
    std::memcpy(out.data(), bytes_.data() + offset, out.size());
    return Status();
  }
  std::optional<Buffer> View(uint64_t offset, uint64_t length) const override {
    return bytes_.Slice(offset, length);
  }

 private:
  const Buffer bytes_;
};

}  // namespace

Result<std::shared_ptr<const ByteSource>> MakeMappedSource(
    std::shared_ptr<const LocalFile> file) {
  Buffer bytes;
  if (file->size > 0) {
    void* address = ::mmap(nullptr, file->size, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_NORESERVE, file->fd.get(), 0);
    if (address == MAP_FAILED) {
      return Status::FromErrno(errno,
                               fmt::format("cannot map {}", Quote(file->path)));
    }
    auto owner = std::make_shared<const Mapping>(address, file->size);
    bytes =
        Buffer(std::move(owner), {static_cast<std::byte*>(address), file->size},
               /*writable=*/true);
  }
  return std::shared_ptr<const ByteSource>(
      std::make_shared<const MappedSource>(std::move(file), std::move(bytes)));
}

}  // namespace haulway
