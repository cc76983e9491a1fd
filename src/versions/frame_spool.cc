#include "versions/frame_spool.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "io/temporary_file.h"

namespace haulway {

namespace {

// A frame goes to the spool in pieces of this size.
constexpr size_t kSpooledPiece = 4 * kMiB;

}  // namespace

Status FrameSpool::Append(Frame* frame, std::span<const std::byte> bytes) {
  if (!frame->growing_.empty() &&
      frame->growing_.size() + bytes.size() > kSpooledPiece) {
    HAULWAY_TRY(Finish(frame));
  }
  frame->growing_.insert(frame->growing_.end(), bytes.begin(), bytes.end());
  frame->size_ += bytes.size();
  return Status();
}

Status FrameSpool::Finish(Frame* frame) {
  std::vector<std::byte>& growing = frame->growing_;
  if (growing.empty()) return Status();
  const uint64_t length = growing.size();
  bool in_memory = false;
  uint64_t offset = 0;
  {
    const std::lock_guard lock(mutex_);
    in_memory = memory_ + length <= most_memory_;
    if (in_memory) {
      memory_ += length;
    } else {
      if (file_.get() < 0) {
        HAULWAY_ASSIGN(file_, OpenNameless(TemporaryFolder()));
      }
      offset = std::exchange(end_, end_ + length);
    }
  }
  if (in_memory) {
    growing.shrink_to_fit();
    frame->pieces_.push_back({std::move(growing), 0, length});
    growing = {};
    return Status();
  }
  const std::span<const std::byte> bytes(growing);
  HAULWAY_TRY(WriteFully(file_.get(), offset, std::span(&bytes, 1))
                  .Of(TemporaryFolder()));
  frame->pieces_.push_back({{}, offset, length});
  growing.clear();
  return Status();
}

Status FrameSpool::Read(const Frame& frame, uint64_t offset,
                        std::span<std::byte> out) const {
  for (const Frame::Piece& piece : frame.pieces_) {
    if (out.empty()) return Status();
    if (offset >= piece.length) {
      offset -= piece.length;
      continue;
    }
    const auto count = static_cast<size_t>(
        std::min<uint64_t>(out.size(), piece.length - offset));
    if (piece.memory.empty()) {
      HAULWAY_TRY(
          ReadFully(file_.get(), piece.offset + offset, out.first(count)));
    } else {
      std::memcpy(out.data(), piece.memory.data() + offset, count);
    }
    out = out.subspan(count);
    offset = 0;
  }
  if (out.size() <= frame.growing_.size()) {
    std::copy_n(frame.growing_.begin() + static_cast<ptrdiff_t>(offset),
                out.size(), out.begin());
  }
  return Status();
}

Result<std::vector<std::byte>> FrameSpool::ReadAll(const Frame& frame) const {
  std::vector<std::byte> bytes(frame.size());
  HAULWAY_TRY(Read(frame, 0, bytes));
  return bytes;
}

}  // namespace haulway
