// Design: a digest is computed in the order of the bytes, by the thread that
// writes. A sink that is fastest with several writes in flight, as direct I/O
// is, gets copies of the bytes from threads of its own meanwhile; any other one
// gets them from the same thread, while a helper digests.

#include "save/digested_sink.h"

#include <algorithm>
#include <array>
#include <condition_variable>
#include <cstddef>
#include <cstring>
#include <deque>
#include <mutex>
#include <optional>
#include <span>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "haulway/buffer.h"
#include "haulway/options.h"

namespace haulway {

namespace {

// Shorter writes are not worth a thread.
constexpr uint64_t kLong = 256 * kKiB;

// A WriteBehind writes to a sink on several threads. Must be used by one
// thread.
class WriteBehind {
 public:
  explicit WriteBehind(ByteSink* sink) : sink_(*sink) {}
  ~WriteBehind() {
    {
      const std::lock_guard lock(mutex_);
      is_over_ = true;
    }
    changed_.notify_all();
  }

  // Copies the parts, of `length` bytes in all, to be written at `offset`.
  // Waits while there are many copies. Fails as a write before it did.
  Status Add(uint64_t offset, std::span<const std::span<const std::byte>> parts,
             uint64_t length) {
    HAULWAY_ASSIGN(Buffer bytes, TakeSpare(length));
    std::byte* at = bytes.mutable_bytes().data();
    for (const auto part : parts) {
      std::memcpy(at, part.data(), part.size());
      at += part.size();
    }
    {
      const std::lock_guard lock(mutex_);
      waiting_.push_back({offset, length, std::move(bytes)});
    }
    changed_.notify_all();
    if (threads_.size() < kThreads) threads_.emplace_back([this] { Run(); });
    return Status();
  }

  // Waits until everything is written.
  Status Drain() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return waiting_.empty() && in_flight_ == 0; });
    return status_;
  }

 private:
  static constexpr size_t kThreads = 3;
  static constexpr size_t kMostCopies = 4;

  struct Copy {
    uint64_t offset = 0;
    uint64_t length = 0;
    Buffer bytes;
  };

  // Returns memory of at least `length` bytes.
  Result<Buffer> TakeSpare(uint64_t length) {
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] {
        return waiting_.size() + in_flight_ < kMostCopies || !status_.ok();
      });
      HAULWAY_TRY(status_);
      const auto found = std::ranges::find_if(
          spare_, [&](const Buffer& one) { return one.size() >= length; });
      if (found != spare_.end()) {
        Buffer bytes = std::move(*found);
        spare_.erase(found);
        return bytes;
      }
      spare_.clear();
    }
    return AllocateBuffer(length);
  }

  void Run() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [&] { return !waiting_.empty() || is_over_; });
      if (is_over_) return;
      Copy copy = std::move(waiting_.front());
      waiting_.pop_front();
      ++in_flight_;
      const bool is_wanted = status_.ok();
      lock.unlock();
      const auto bytes = copy.bytes.bytes().first(copy.length);
      Status written = is_wanted ? sink_.WriteAt(copy.offset, bytes) : Status();
      lock.lock();
      if (status_.ok()) status_ = std::move(written);
      spare_.push_back(std::move(copy.bytes));
      --in_flight_;
      changed_.notify_all();
    }
  }

  ByteSink& sink_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Copy> waiting_ HAULWAY_GUARDED_BY(mutex_);
  size_t in_flight_ HAULWAY_GUARDED_BY(mutex_) = 0;
  std::vector<Buffer> spare_ HAULWAY_GUARDED_BY(mutex_);
  Status status_ HAULWAY_GUARDED_BY(mutex_);  // The first failure.
  bool is_over_ HAULWAY_GUARDED_BY(mutex_) = false;
  std::vector<std::jthread> threads_;  // Last: they use the members above.
};

class DigestedSink : public ByteSink {
 public:
  DigestedSink(std::unique_ptr<ByteSink> sink,
               std::function<void(uint64_t, const Sha256Value&)> done)
      : sink_(std::move(sink)), done_(std::move(done)) {}

  std::string_view name() const override { return sink_->name(); }
  uint64_t direct_bytes() const override { return sink_->direct_bytes(); }

  Result<SinkTraits> Begin(std::optional<uint64_t> size) override {
    HAULWAY_ASSIGN(SinkTraits traits, sink_->Begin(size));
    if (!traits.ordered && !traits.in_turn) behind_.emplace(sink_.get());
    traits.ordered = true;
    return traits;
  }

  Status WriteAt(uint64_t offset,
                 std::span<const std::span<const std::byte>> parts) override {
    if (offset != end_) {
      return Status(Code::kInternal, "bytes of an ordered file have a gap");
    }
    uint64_t length = 0;
    for (const auto part : parts) length += part.size();
    end_ += length;
    const auto digest = [&] {
      for (const auto part : parts) digest_.Update(part);
    };
    if (length < kLong) {
      digest();
      return sink_->WriteAt(offset, parts);
    }
    if (behind_.has_value()) {
      HAULWAY_TRY(behind_->Add(offset, parts, length));
      digest();
      return Status();
    }
    std::thread helper(digest);
    Status written = sink_->WriteAt(offset, parts);
    helper.join();
    return written;
  }

  Status Commit(uint64_t size) override {
    if (behind_.has_value()) HAULWAY_TRY(behind_->Drain());
    HAULWAY_TRY(sink_->Commit(size));
    // Bytes that were never written are zero.
    constexpr std::array<std::byte, 4096> kZeros{};
    while (end_ < size) {
      const auto some = std::span(kZeros).first(
          std::min<uint64_t>(kZeros.size(), size - end_));
      digest_.Update(some);
      end_ += some.size();
    }
    done_(size, digest_.Finish());
    return Status();
  }

 private:
  const std::unique_ptr<ByteSink> sink_;
  const std::function<void(uint64_t, const Sha256Value&)> done_;
  uint64_t end_ = 0;
  Sha256 digest_;
  std::optional<WriteBehind> behind_;  // After sink_, which it writes to.
};

}  // namespace

std::unique_ptr<ByteSink> MakeDigestedSink(
    std::unique_ptr<ByteSink> sink,
    std::function<void(uint64_t bytes, const Sha256Value& sha256)> done) {
  return std::make_unique<DigestedSink>(std::move(sink), std::move(done));
}

}  // namespace haulway
