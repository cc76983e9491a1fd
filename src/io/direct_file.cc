#include "io/direct_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <utility>

namespace haulway {

namespace {

// Devices require 512 or 4096. A page satisfies all of them, and memory with
// the same offset modulo a page is easy to get.
constexpr uint64_t kPage = 4096;
// Size of a memory block: a huge page, which is one segment to a device. With
// small pages, many devices transfer at most 1 MiB at once, and read half as
// fast.
constexpr uint64_t kReadBlock = 2 * kMiB;

uint64_t RoundUp(uint64_t value, uint64_t alignment) {
  return (value + alignment - 1) & ~(alignment - 1);
}

bool CanOpenDirect(int fd) {
  return OpenAgain(fd, O_RDONLY | O_DIRECT, "").ok();
}

}  // namespace

uint64_t DirectAlignment(int fd) {
#ifdef STATX_DIOALIGN
  struct statx facts;
  if (::statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &facts) == 0 &&
      (facts.stx_mask & STATX_DIOALIGN) != 0) {
    const uint64_t asked =
        std::max(facts.stx_dio_mem_align, facts.stx_dio_offset_align);
    const bool usable = facts.stx_dio_offset_align > 0 &&
                        std::has_single_bit(asked) && asked <= kReadBlock / 2;
    return usable ? std::max(asked, kPage) : 0;
  }
#endif
  return CanOpenDirect(fd) ? kPage : 0;
}

DirectPiece::DirectPiece(uint64_t offset, std::span<std::byte> out,
                         uint64_t alignment, std::span<std::byte> blocks) {
  head_ = offset & (alignment - 1);
  offset_ = offset - head_;
  const bool in_place = ((reinterpret_cast<uintptr_t>(out.data()) - offset) &
                         (alignment - 1)) == 0;
  uint64_t most = kLargest;
  if (!in_place) {
    const uint64_t all = head_ + out.size();
    const uint64_t parts = (all - 1) / blocks.size() + 1;
    most = RoundUp((all - 1) / parts + 1, alignment);
  }
  wanted_ = out.first(std::min<uint64_t>(out.size(), most - head_));
  const uint64_t end = head_ + wanted_.size();  // Relative to offset_.
  const auto add = [&](std::byte* to, uint64_t bytes) {
    if (bytes > 0) vectors_[count_++] = {to, bytes};
  };
  if (!in_place) {
    add(blocks.data(), RoundUp(end, alignment));
    return;
  }
  const uint64_t whole_begin = RoundUp(head_, alignment);
  const uint64_t whole_end = end & ~(alignment - 1);
  if (whole_begin >= whole_end) {  // At most two blocks, both partial.
    add(blocks.data(), RoundUp(end, alignment));
    return;
  }
  add(blocks.data(), whole_begin);
  add(wanted_.data() + (whole_begin - head_), whole_end - whole_begin);
  if (whole_end < end) add(blocks.data() + alignment, alignment);
}

uint64_t DirectPiece::Take(uint64_t read) const {
  uint64_t position = 0;  // Relative to offset_.
  for (const iovec& vector : vectors()) {
    const uint64_t begin = std::max(position, head_);
    const uint64_t end =
        std::min({position + vector.iov_len, read, head_ + wanted_.size()});
    if (begin < end) {
      std::byte* const to = wanted_.data() + (begin - head_);
      const auto* from =
          static_cast<const std::byte*>(vector.iov_base) + (begin - position);
      if (from != to) std::memcpy(to, from, end - begin);
    }
    position += vector.iov_len;
  }
  if (read <= head_) return 0;
  return std::min<uint64_t>(read - head_, wanted_.size());
}

Status DirectPiece::Finish(int buffered_fd, uint64_t done) const {
  return ReadFully(buffered_fd, offset_ + head_ + done, wanted_.subspan(done));
}

Result<std::unique_ptr<DirectFile>> DirectFile::Open(
    std::shared_ptr<const LocalFile> file) {
  const auto refuse = [&](std::string_view why) {
    return Status(Code::kUnsupported,
                  fmt::format("cannot read around the page cache: {}", why))
        .Of(file->path);
  };
  const uint64_t alignment = DirectAlignment(file->fd.get());
  if (alignment == 0) return refuse("the file system refuses O_DIRECT");
  Result<UniqueFd> fd =
      OpenAgain(file->fd.get(), O_RDONLY | O_DIRECT, file->path);
  if (!fd.ok()) return refuse(fd.status().message());
  return std::unique_ptr<DirectFile>(
      new DirectFile(std::move(file), std::move(*fd), alignment));
}

std::unique_ptr<DirectFile> DirectFile::OpenOrBuffered(
    std::shared_ptr<const LocalFile> file) {
  Result<std::unique_ptr<DirectFile>> direct = Open(file);
  if (direct.ok()) return std::move(*direct);
  return std::unique_ptr<DirectFile>(
      new DirectFile(std::move(file), UniqueFd(), 1));
}

Status DirectFile::Read(uint64_t offset, std::span<std::byte> out) const {
  if (out.empty()) return Status();
  HAULWAY_ASSIGN(const Buffer blocks, TakeBlocks());
  Status status;
  while (status.ok() && !out.empty()) {
    const DirectPiece piece(offset, out, alignment_, blocks.mutable_bytes());
    Result<uint64_t> read = ReadOnce(fd(), piece.offset(), piece.vectors());
    if (!read.ok() && read.status().os_error() != EINVAL) {
      status = read.status();
      break;
    }
    const uint64_t done = read.ok() ? piece.Take(*read) : 0;
    if (done < piece.length()) status = piece.Finish(buffered_fd(), done);
    offset += piece.length();
    out = out.subspan(piece.length());
  }
  return status;
}

Result<Buffer> DirectFile::TakeBlocks() const {
  return memory_.Take(kReadBlock);
}

}  // namespace haulway
