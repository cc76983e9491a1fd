#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <optional>
#include <thread>
#include <utility>

#include "arena/mapped_range.h"
#include "base/memory_file.h"
#include "base/page_bytes.h"
#include "base/text.h"
#include "haulway/publish.h"
#include "publish/name_folder.h"
#include "publish/publication_file.h"

namespace haulway {

namespace {

using publish::LockByte;
using publish::NameFolder;
using publish::PublicationFile;
using publish::Sharing;

// A Holding is a version that this process holds locked and mapped.
class Holding {
 public:
  // Returns nullopt if the slot now holds another version.
  static Result<std::optional<PublishedVersion>> Take(
      const PublicationFile& file, uint32_t slot, uint64_t version) {
    // A new open file description, with its own lock.
    HAULWAY_ASSIGN(UniqueFd fd, publish::Reopen(file.fd(), false));
    if (!LockByte(fd.get(), slot, Sharing::kShared) ||
        file.slot(slot).version.load() != version) {
      return std::optional<PublishedVersion>();
    }
    const auto message = file.MessageOf(slot);
    if (!message.has_value()) {
      return Status(Code::kCorrupt, "version that ends past shared memory")
          .In("publication");
    }
    const uint64_t lead = message->offset % PageBytes();
    const uint64_t bytes = lead + message->bytes;
    void* start = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_NORESERVE, fd.get(),
                         static_cast<off_t>(message->offset - lead));
    if (start == MAP_FAILED) {
      return NoSharedMemory(errno, "cannot map shared memory", bytes);
    }
    auto holding = std::make_shared<Holding>(std::move(fd), start, bytes);
    const std::span<std::byte> all(static_cast<std::byte*>(start), bytes);
    return std::optional<PublishedVersion>(PublishedVersion{
        version, Buffer(std::move(holding), all.subspan(lead), true)});
  }

  Holding(UniqueFd fd, void* start, uint64_t bytes)
      : fd_(std::move(fd)), start_(start), bytes_(bytes) {}
  Holding(const Holding&) = delete;
  Holding& operator=(const Holding&) = delete;
  ~Holding() {
    (void)::munmap(start_, bytes_);
    // The last holder of an old version frees its memory.
    const auto file = PublicationFile::Open(fd_.get(), /*writable=*/true);
    fd_ = UniqueFd();
    if (file.ok()) (*file)->Trim((*file)->has_publisher());
  }

 private:
  UniqueFd fd_;
  void* const start_;
  const uint64_t bytes_;
};

// `publisher`: the process in the name's file, or 0.
Status WhyNotFound(const std::string& name, uint32_t publisher) {
  const std::string files = fmt::format("/proc/{}/fd", publisher);
  if (publisher != 0 && publish::UserOf(publisher) == ::geteuid() &&
      ::access(files.c_str(), R_OK) != 0 && errno == EACCES) {
    return Status(
        Code::kPermissionDenied,
        fmt::format("process {}, which publishes {}, has changed its "
                    "user or its rights, so no other process may look "
                    "into it: it must call prctl(PR_SET_DUMPABLE, 1)",
                    publisher, Quote(name)));
  }
  if (NameFolder::IsOfAnotherUser(name)) {
    return Status(Code::kPermissionDenied,
                  "the shared memory belongs to another user")
        .Of(Quote(name));
  }
  return Status(Code::kNotFound,
                fmt::format("nothing is published as {}", Quote(name)));
}

}  // namespace

Subscriber::Subscriber(std::shared_ptr<PublicationFile> file)
    : file_(std::move(file)) {}
Subscriber::~Subscriber() = default;

Result<std::unique_ptr<Subscriber>> Subscriber::Open(std::string_view name) {
  HAULWAY_TRY(publish::CheckName(name));
  HAULWAY_ASSIGN(const NameFolder folder,
                 NameFolder::Open(NameFolder::Access::kShared));
  const uint32_t publisher = folder.Read(std::string(name)).value_or(0);
  auto file = PublicationFile::Find(name, publisher, /*writable=*/false);
  if (!file.ok()) {
    if (file.status().code() == Code::kNotFound) {
      return WhyNotFound(std::string(name), publisher);
    }
    return std::move(file).status().Of(Quote(name));
  }
  // The lock marks this process as a subscriber in ListPublications().
  (void)LockByte((*file)->fd(), publish::kSubscriberLock, Sharing::kShared);
  return std::unique_ptr<Subscriber>(new Subscriber(std::move(file).value()));
}

Result<PublishedVersion> Subscriber::Take(uint64_t newer_than,
                                          uint64_t wait_ns) const {
  constexpr int kMostAttempts = 10'000;
  const publish::Header& header = file_->header();
  const auto start = std::chrono::steady_clock::now();
  uint64_t waited = 0;
  uint64_t tried = 0;
  int attempts = 0;
  while (true) {
    const uint32_t rings = header.rings.load();
    const uint64_t newest = header.newest.load();
    const uint64_t version = publish::VersionOf(newest);
    const uint32_t slot = publish::SlotOf(newest);
    if (version <= newer_than) {
      if (waited >= wait_ns) {
        return Status(Code::kTimeout,
                      fmt::format("no version newer than {}", newer_than));
      }
      arena::FutexWait(header.rings, rings, wait_ns - waited);
      // By the clock: a signal ends the wait early.
      waited = static_cast<uint64_t>(
          std::chrono::duration_cast<std::chrono::nanoseconds>(
              std::chrono::steady_clock::now() - start)
              .count());
      continue;
    }
    if (slot >= publish::kSlots) {
      return Status(Code::kCorrupt, "no such slot").In("publication");
    }
    HAULWAY_ASSIGN(auto taken, Holding::Take(*file_, slot, version));
    if (taken.has_value()) return std::move(*taken);
    // A newer version has replaced it meanwhile.
    attempts = newest == tried ? attempts + 1 : 0;
    tried = newest;
    if (attempts > kMostAttempts) {
      return Status(Code::kCorrupt, "newest version cannot be held")
          .In("publication");
    }
    if (attempts > 0) {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }
}

Result<PublishedVersion> Subscriber::TakeVersion(uint64_t version) const {
  for (uint32_t i = 0; version != 0 && i < publish::kSlots; ++i) {
    if (version > newest() || file_->IsRetired(version)) break;
    if (file_->slot(i).version.load() != version) continue;
    HAULWAY_ASSIGN(auto taken, Holding::Take(*file_, i, version));
    if (taken.has_value()) return std::move(*taken);
  }
  return Status(Code::kNotFound, fmt::format("no version {}: the newest is {}",
                                             version, newest()))
      .Of(Quote(file_->name()));
}

uint64_t Subscriber::newest() const {
  return publish::VersionOf(file_->header().newest.load());
}

bool Subscriber::has_publisher() const { return file_->has_publisher(); }

}  // namespace haulway
