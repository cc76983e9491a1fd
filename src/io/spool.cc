#include "io/spool.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <iterator>

#include "io/temporary_file.h"

namespace haulway {

Status Spool::Open() {
  HAULWAY_ASSIGN(own_, OpenNameless(TemporaryFolder()));
  return Status();
}

Status Spool::WriteAt(uint64_t offset,
                      std::span<const std::span<const std::byte>> parts) {
  return WriteFully(own_.get(), offset, parts);
}

Status Spool::ShareAt(uint64_t offset, const FileBytes& from, uint64_t length) {
  struct stat facts;
  if (::fstat(from.fd, &facts) != 0) {
    return Status::FromErrno(errno, "cannot look at what is to be written");
  }
  const std::lock_guard lock(mutex_);
  UniqueFd& file = files_[{facts.st_dev, facts.st_ino}];
  if (file.get() < 0) {
    auto again = OpenAgain(from.fd, O_RDONLY, "what is to be written");
    if (!again.ok()) {
      return Status(Code::kUnsupported, "it cannot be opened again");
    }
    file = *std::move(again);
  }
  shared_[offset] = {offset + length, {file.get(), from.offset}};
  return Status();
}

Status Spool::End(uint64_t size) {
  if (::ftruncate(own_.get(), static_cast<off_t>(size)) == 0) return Status();
  return Status::FromErrno(errno, "cannot keep what is to be written");
}

Status Spool::ReadAt(uint64_t offset, std::span<std::byte> out) const {
  while (!out.empty()) {
    const auto next = shared_.upper_bound(offset);
    const auto last = next == shared_.begin() ? next : std::prev(next);
    const bool is_shared = last != next && offset < last->second.end;
    uint64_t length = out.size();
    if (is_shared) {
      length = std::min(length, last->second.end - offset);
    } else if (next != shared_.end()) {
      length = std::min(length, next->first - offset);
    }
    const auto part = out.first(static_cast<size_t>(length));
    if (is_shared) {
      const FileBytes& from = last->second.from;
      const uint64_t within = offset - last->first;
      HAULWAY_TRY(ReadFully(from.fd, from.offset + within, part));
    } else {
      HAULWAY_TRY(ReadFully(own_.get(), offset, part));
    }
    offset += length;
    out = out.subspan(part.size());
  }
  return Status();
}

}  // namespace haulway
