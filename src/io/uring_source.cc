#include <fmt/format.h>
#include <liburing.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <mutex>
#include <utility>
#include <vector>

#include "io/direct_file.h"
#include "io/local_source.h"

namespace haulway {

namespace {

constexpr unsigned kDepth = 16;  // Pieces in flight per call.

// A Ring is one io_uring(7), used by one call at a time.
class Ring {
 public:
  static Result<std::unique_ptr<Ring>> Make() {
    auto ring = std::unique_ptr<Ring>(new Ring);
    const int result = ::io_uring_queue_init(kDepth, &ring->ring_, 0);
    if (result < 0) {
      return Status::FromErrno(-result, "cannot set up io_uring");
    }
    ring->set_up_ = true;
    return ring;
  }
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;
  ~Ring() {
    if (set_up_) ::io_uring_queue_exit(&ring_);
  }

  io_uring* get() { return &ring_; }
  // Returns false in a forked process, which shares the ring's memory with its
  // parent.
  bool IsOurs() const { return owner_ == ::getpid(); }

 private:
  Ring() = default;
  io_uring ring_{};
  bool set_up_ = false;
  const pid_t owner_ = ::getpid();
};

// A Batch is the work of one ReadMany().
class Batch {
 public:
  Batch(const DirectFile& file, io_uring* ring,
        std::span<const ReadRequest> requests)
      : file_(file), ring_(ring), requests_(requests) {}
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;

  // Reads all requests. Returns only when no request is in flight any more,
  // even after a failure.
  Status Run() {
    for (unsigned i = 0; i < kDepth; ++i) idle_.push_back(i);
    while (true) {
      while (status_.ok() && !idle_.empty() && SkipEmpty()) Prepare();
      if (!status_.ok() || idle_.size() == kDepth) break;
      const int result = ::io_uring_submit_and_wait(ring_, 1);
      if (result >= 0) {
        in_flight_ += static_cast<unsigned>(result);
      } else if (result != -EINTR &&
                 (in_flight_ == 0 || (result != -EAGAIN && result != -EBUSY))) {
        Fail(Status::FromErrno(-result, "io_uring failed"));
      }
      TakeCompleted();
    }
    // The kernel must not write to the caller's memory after we return.
    while (in_flight_ > 0) {
      io_uring_cqe* entry = nullptr;
      ::io_uring_wait_cqe(ring_, &entry);
      TakeCompleted();
    }
    return std::move(status_);
  }

 private:
  struct Slot {
    DirectPiece piece;
    Buffer blocks;
  };

  void Fail(Status status) {
    if (status_.ok()) status_ = std::move(status);
  }

  // Advances to bytes not requested yet. Returns false if there are none.
  bool SkipEmpty() {
    while (next_ < requests_.size() && done_ == requests_[next_].out.size()) {
      ++next_;
      done_ = 0;
    }
    return next_ < requests_.size();
  }

  // Puts the next piece into an idle slot and queues it.
  void Prepare() {
    Slot& slot = slots_[idle_.back()];
    if (slot.blocks.size() == 0) {
      Result<Buffer> blocks = file_.TakeBlocks();
      if (!blocks.ok()) return Fail(blocks.status());
      slot.blocks = std::move(*blocks);
    }
    io_uring_sqe* entry = ::io_uring_get_sqe(ring_);
    if (entry == nullptr) return Fail(Status(Code::kInternal, "ring is full"));
    const ReadRequest& request = requests_[next_];
    slot.piece = DirectPiece(request.offset + done_, request.out.subspan(done_),
                             file_.alignment(), slot.blocks.mutable_bytes());
    ::io_uring_prep_readv(entry, file_.fd(), slot.piece.vectors().data(),
                          static_cast<unsigned>(slot.piece.vectors().size()),
                          slot.piece.offset());
    ::io_uring_sqe_set_data64(entry, idle_.back());
    idle_.pop_back();
    done_ += slot.piece.length();
  }

  void TakeCompleted() {
    io_uring_cqe* entry = nullptr;
    while (::io_uring_peek_cqe(ring_, &entry) == 0) {
      const auto slot = static_cast<unsigned>(entry->user_data);
      const int result = entry->res;
      ::io_uring_cqe_seen(ring_, entry);
      --in_flight_;
      if (status_.ok()) Complete(slots_[slot].piece, result);
      idle_.push_back(slot);
    }
  }

  // Reads without the ring what the ring read only partly or not at all.
  void Complete(const DirectPiece& piece, int result) {
    const bool again = result == -EINVAL || result == -EINTR ||
                       result == -EAGAIN || result == -EOPNOTSUPP;
    if (result < 0 && !again) {
      return Fail(Status::FromErrno(-result, "read failed").At(piece.offset()));
    }
    const uint64_t done =
        result < 0 ? 0 : piece.Take(static_cast<uint64_t>(result));
    if (done < piece.length()) Fail(piece.Finish(file_.buffered_fd(), done));
  }

  const DirectFile& file_;
  io_uring* const ring_;
  const std::span<const ReadRequest> requests_;
  size_t next_ = 0;    // The current request.
  uint64_t done_ = 0;  // Bytes of it that were submitted.
  std::array<Slot, kDepth> slots_;
  std::vector<unsigned> idle_;
  unsigned in_flight_ = 0;
  Status status_;
};

class UringSource : public LocalSource {
 public:
  UringSource(std::shared_ptr<const LocalFile> file,
              std::unique_ptr<DirectFile> direct, std::unique_ptr<Ring> ring)
      : LocalSource(std::move(file), IoMode::kUring),
        direct_(std::move(direct)) {
    spare_.push_back(std::move(ring));
  }

  Status ReadAt(uint64_t offset, std::span<std::byte> out) const override {
    if (out.size() <= DirectPiece::kLargest) {
      HAULWAY_TRY(CheckRange(offset, out.size()));
      return direct_->Read(offset, out);
    }
    const ReadRequest request{offset, out};
    return ReadMany(std::span(&request, 1));
  }

  Status ReadMany(std::span<const ReadRequest> requests) const override {
    for (const ReadRequest& request : requests) {
      HAULWAY_TRY(CheckRange(request.offset, request.out.size()));
    }
    HAULWAY_ASSIGN(std::unique_ptr<Ring> ring, TakeRing());
    Status status = Batch(*direct_, ring->get(), requests).Run();
    const std::lock_guard lock(mutex_);
    // After a failure, the ring may hold entries that were not submitted.
    if (status.ok()) spare_.push_back(std::move(ring));
    return status;
  }

 private:
  Result<std::unique_ptr<Ring>> TakeRing() const {
    {
      const std::lock_guard lock(mutex_);
      while (!spare_.empty()) {
        std::unique_ptr<Ring> ring = std::move(spare_.back());
        spare_.pop_back();
        if (ring->IsOurs()) return ring;
      }
    }
    return Ring::Make();
  }

  const std::unique_ptr<DirectFile> direct_;
  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<Ring>> spare_ HAULWAY_GUARDED_BY(mutex_);
};

}  // namespace

bool MayUseUring() {
  // Creating a ring takes about 50 us. If a ring is refused later, the file is
  // read without io_uring.
  static std::atomic<bool> has_worked = false;
  if (has_worked.load(std::memory_order_relaxed)) return true;
  if (!Ring::Make().ok()) return false;
  has_worked.store(true, std::memory_order_relaxed);
  return true;
}

Result<std::shared_ptr<const ByteSource>> MakeUringSource(
    std::shared_ptr<const LocalFile> file) {
  Result<std::unique_ptr<Ring>> ring = Ring::Make();
  if (!ring.ok()) {
    return Status(Code::kUnsupported, ring.status().message()).Of(file->path);
  }
  auto direct = DirectFile::OpenOrBuffered(file);
  return std::shared_ptr<const ByteSource>(std::make_shared<const UringSource>(
      std::move(file), std::move(direct), std::move(*ring)));
}

}  // namespace haulway
