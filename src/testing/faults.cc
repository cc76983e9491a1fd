// _FORTIFY_SOURCE would wrap functions that this file replaces.
#undef _FORTIFY_SOURCE

#include "testing/faults.h"

#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

namespace haulway::test {

Status FaultySource::ReadAt(uint64_t offset, std::span<std::byte> out) const {
  const Faults& faults = state_->faults;
  const uint64_t read = state_->reads.fetch_add(1);
  if (faults.before_read) {
    HAULWAY_TRY(faults.before_read(read, offset, out.size()));
  }
  if (read >= faults.fail_from && read - faults.fail_from < faults.failures) {
    return Status(faults.failure).At(offset);
  }
  if (read >= faults.cut_from && offset + out.size() > faults.cut_at) {
    return Status(Code::kTruncated, "file ends early")
        .At(std::max(offset, faults.cut_at));
  }
  return source_->ReadAt(offset, out);
}

Status FaultySource::ReadMany(std::span<const ReadRequest> requests) const {
  for (const ReadRequest& request : requests) {
    HAULWAY_TRY(ReadAt(request.offset, request.out));
  }
  return Status();
}

SourceTraits FaultySource::Look(std::span<const ByteRange> ranges) const {
  SourceTraits traits = source_->Look(ranges);
  traits.views = false;
  return traits;
}

Result<std::shared_ptr<const ByteSource>> FaultySource::Reopen(
    IoMode io) const {
  HAULWAY_ASSIGN(auto again, source_->Reopen(io));
  return std::shared_ptr<const ByteSource>(
      new FaultySource(std::move(again), state_));
}

Result<std::shared_ptr<const ByteSource>> FaultySource::OpenNeighbour(
    std::string_view name) const {
  HAULWAY_ASSIGN(auto beside, source_->OpenNeighbour(name));
  return std::shared_ptr<const ByteSource>(
      new FaultySource(std::move(beside), state_));
}

namespace {

// The functions below serve the whole program, so their state is global.
std::atomic<bool> active{false};
ShortReads::Plan plan;
std::atomic<uint64_t> all_calls{0};

// Returns the number of bytes that the next call may return; -1, with errno
// set, if it must fail.
int64_t Permit() {
  if (!active.load()) return INT64_MAX;
  const uint64_t call = all_calls.fetch_add(1);
  if (call >= plan.fail_from) {
    errno = plan.error;
    return -1;
  }
  if (plan.interrupt_every > 0 &&
      call % plan.interrupt_every == plan.interrupt_every - 1) {
    errno = EINTR;
    return -1;
  }
  return static_cast<int64_t>(std::min<uint64_t>(plan.most_bytes, INT64_MAX));
}

}  // namespace

ShortReads::ShortReads(const Plan& wanted) {
  plan = wanted;
  all_calls = 0;
  active = true;
}
ShortReads::~ShortReads() { active = false; }
uint64_t ShortReads::calls() const { return all_calls.load(); }

// Called by the replacements of the C library's functions.
ssize_t PermittedPread(int fd, void* to, size_t bytes, int64_t offset) {
  const int64_t most = Permit();
  if (most < 0) return -1;
  return ::syscall(SYS_pread64, fd, to,
                   std::min(bytes, static_cast<size_t>(most)), offset);
}

ssize_t PermittedPreadv(int fd, const iovec* vectors, int count,
                        int64_t offset) {
  int64_t most = Permit();
  if (most < 0) return -1;
  std::array<iovec, 16> cut;
  int kept = 0;
  for (; kept < std::min(count, 16) && most > 0; ++kept) {
    cut[kept] = vectors[kept];
    cut[kept].iov_len = std::min(cut[kept].iov_len, static_cast<size_t>(most));
    most -= static_cast<int64_t>(cut[kept].iov_len);
  }
  return ::syscall(SYS_preadv, fd, cut.data(), kept, offset, 0);
}

}  // namespace haulway::test

extern "C" {
__attribute__((visibility("default"))) ssize_t pread(int fd, void* to,
                                                     size_t bytes,
                                                     off_t offset) {
  return haulway::test::PermittedPread(fd, to, bytes, offset);
}
__attribute__((visibility("default"))) ssize_t pread64(int fd, void* to,
                                                       size_t bytes,
                                                       off64_t offset) {
  return haulway::test::PermittedPread(fd, to, bytes, offset);
}
__attribute__((visibility("default"))) ssize_t preadv(int fd,
                                                      const iovec* vectors,
                                                      int count, off_t offset) {
  return haulway::test::PermittedPreadv(fd, vectors, count, offset);
}
}
