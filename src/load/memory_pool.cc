// Design: each block of pooled memory has one owner, a Block, which all Buffers
// of the block share. A released part goes to the pool's list with the time at
// which its pages are freed. When the last part is released, the whole block
// goes to the list instead. A thread waits for the earliest of these times, and
// ends when the list is empty. So a program that releases no memory, or that
// waits long enough, has no thread of the pool.
//
// Not used: MADV_FREE, which lets the kernel reclaim kept pages when it needs
// them. Kernels before 5.18 may then lose data that a direct read has just
// stored in such a page.

#include "load/memory_pool.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <iterator>
#include <list>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "base/host_memory.h"
#include "base/posix.h"
#include "haulway/machine.h"
#include "load/choose_io.h"

namespace haulway {

namespace {

using Clock = std::chrono::steady_clock;

// Freeing fewer bytes early is not worth a system call.
constexpr uint64_t kSmallestPart = 1 * kMiB;
// A kept block may be at most this many times as long as the memory asked for.
constexpr uint64_t kLongest = 2;
// By default a pool keeps 1 / kShare of the memory available to the process.
constexpr uint64_t kShare = 8;

class Block;

}  // namespace

class MemoryPool::Pages {
 public:
  explicit Pages(const MemoryPoolOptions& options)
      : most_(options.most_bytes), keep_(options.keep) {}
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  ~Pages() {
    if (IsOurs()) {
      Clear();
    } else if (thread_.joinable()) {
      thread_.detach();  // The thread exists in the parent process only.
    }
  }

  uint64_t kept_bytes() const {
    if (!IsOurs()) return 0;
    const std::lock_guard lock(mutex_);
    return kept_;
  }

  void Clear();

  // Returns memory of at least `bytes`, or an empty Buffer.
  Buffer Take(uint64_t bytes);
  // Keeps unused pages of `block`. `whole`: size of the block in bytes.
  void KeepPart(const Block* block, uint64_t whole, std::span<std::byte> pages);
  // Keeps the memory of a block that has ended, including parts kept earlier.
  void KeepWhole(const Block* block, Buffer memory);

 private:
  // Unused pages: part of a block that is still in use, or all memory of a
  // block that has ended.
  struct Kept {
    Clock::time_point until;
    const Block* block;  // Null after the block has ended.
    std::span<std::byte> pages;
    Buffer memory;  // Set after the block has ended.
  };
  using List = std::list<Kept>;

  // Returns false in a process forked from the one that made the pool. There, a
  // thread that does not exist may hold the mutex.
  bool IsOurs() const { return process_ == ::getpid(); }

  // Require the mutex. Memory that is no longer kept is moved to `freed`, which
  // the caller destroys after unlocking the mutex.
  void Add(Kept kept, List* freed);
  List::iterator Remove(List::iterator at, List* freed);
  uint64_t MostBytes();
  bool StartThread();

  void Run(uint64_t turn);

  uint64_t most_ HAULWAY_GUARDED_BY(mutex_);  // 0 until computed.
  const std::chrono::milliseconds keep_;
  const pid_t process_ = ::getpid();
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  List list_ HAULWAY_GUARDED_BY(mutex_);  // Sorted by time, the earliest first.
  uint64_t kept_ HAULWAY_GUARDED_BY(mutex_) = 0;
  std::thread thread_ HAULWAY_GUARDED_BY(mutex_);
  // Identifies the current thread; threads with another number end.
  uint64_t turn_ HAULWAY_GUARDED_BY(mutex_) = 0;
  // Whether the current thread will look at the list again.
  bool running_ HAULWAY_GUARDED_BY(mutex_) = false;
};

namespace {

class Block final : public PooledMemory,
                    public std::enable_shared_from_this<Block> {
 public:
  Block(std::shared_ptr<MemoryPool::Pages> pool, Buffer memory)
      : pool_(std::move(pool)), memory_(std::move(memory)) {}
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;
  ~Block() override { pool_->KeepWhole(this, std::move(memory_)); }

  Buffer buffer() override {
    return Buffer(shared_from_this(), memory_.mutable_bytes(), true);
  }

  Buffer Slice(uint64_t offset, uint64_t length) override {
    const auto bytes = memory_.mutable_bytes().subspan(offset, length);
    if (length < kSmallestPart) return Buffer(shared_from_this(), bytes, true);
    const auto keep = [self = shared_from_this(), bytes](std::byte*) {
      self->pool_->KeepPart(self.get(), self->memory_.size(),
                            WholePages(bytes));
    };
    return Buffer(std::shared_ptr<const void>(bytes.data(), keep), bytes, true);
  }

 private:
  const std::shared_ptr<MemoryPool::Pages> pool_;
  Buffer memory_;
};

}  // namespace

void MemoryPool::Pages::Clear() {
  if (!IsOurs()) return;
  List freed;
  std::thread ended;
  {
    const std::lock_guard lock(mutex_);
    while (!list_.empty()) Remove(list_.begin(), &freed);
    ended.swap(thread_);
    ++turn_;
    running_ = false;
    changed_.notify_all();
  }
  if (ended.joinable()) ended.join();
}

Buffer MemoryPool::Pages::Take(uint64_t bytes) {
  if (!IsOurs()) return {};
  const std::lock_guard lock(mutex_);
  auto best = list_.end();
  for (auto at = list_.begin(); at != list_.end(); ++at) {
    const uint64_t size = at->memory.size();
    const bool fits = size >= bytes && size / kLongest <= bytes;
    if (!fits || (best != list_.end() && size >= best->memory.size())) continue;
    best = at;
  }
  if (best == list_.end()) return {};
  Buffer memory = best->memory;
  List taken;
  Remove(best, &taken);
  GiveBack(WholePages(memory.mutable_bytes().subspan(bytes)));
  return memory;
}

void MemoryPool::Pages::KeepPart(const Block* block, uint64_t whole,
                                 std::span<std::byte> pages) {
  if (!IsOurs()) return GiveBack(pages);
  List freed;
  const std::lock_guard lock(mutex_);
  if (whole > MostBytes()) return GiveBack(pages);
  Add({Clock::now() + keep_, block, pages, {}}, &freed);
}

void MemoryPool::Pages::KeepWhole(const Block* block, Buffer memory) {
  if (!IsOurs()) return;
  List freed;
  const std::lock_guard lock(mutex_);
  for (auto at = list_.begin(); at != list_.end();) {
    if (at->block != block) {
      ++at;
      continue;
    }
    kept_ -= at->pages.size();
    at = list_.erase(at);
  }
  const auto pages = memory.mutable_bytes();
  Add({Clock::now() + keep_, nullptr, pages, std::move(memory)}, &freed);
}

void MemoryPool::Pages::Add(Kept kept, List* freed) {
  const uint64_t most = MostBytes();
  if (kept.pages.size() > most) return freed->push_back(std::move(kept));
  kept_ += kept.pages.size();
  list_.push_back(std::move(kept));
  if (!StartThread()) Remove(std::prev(list_.end()), freed);
  while (kept_ > most) Remove(list_.begin(), freed);
}

MemoryPool::Pages::List::iterator MemoryPool::Pages::Remove(List::iterator at,
                                                            List* freed) {
  kept_ -= at->pages.size();
  // While holding the mutex: otherwise the block could end and its memory be
  // reused first.
  if (at->block != nullptr) GiveBack(at->pages);
  const auto next = std::next(at);
  freed->splice(freed->end(), list_, at);
  return next;
}

uint64_t MemoryPool::Pages::MostBytes() {
  if (most_ == 0) most_ = LookAtMachine().available_memory / kShare + 1;
  return most_;
}

bool MemoryPool::Pages::StartThread() {
  if (running_) return true;
  // The thread has ended or is about to.
  if (thread_.joinable()) thread_.join();
  try {
    // The new thread inherits the signal mask.
    const AllSignalsBlocked blocked;
    thread_ = std::thread(&MemoryPool::Pages::Run, this, turn_);
    running_ = true;
  } catch (const std::system_error&) {
  }
  return running_;
}

void MemoryPool::Pages::Run(uint64_t turn) {
  ::pthread_setname_np(::pthread_self(), "haulway-pool");
  std::unique_lock lock(mutex_);
  while (turn_ == turn && !list_.empty()) {
    const Clock::time_point until = list_.front().until;
    if (Clock::now() < until) {
      changed_.wait_until(lock, until);
      continue;
    }
    List freed;
    Remove(list_.begin(), &freed);
    lock.unlock();
    freed.clear();
    lock.lock();
  }
  if (turn_ == turn) running_ = false;
}

MemoryPool::MemoryPool(const MemoryPoolOptions& options)
    : pages_(std::make_shared<Pages>(options)) {}

uint64_t MemoryPool::kept_bytes() const { return pages_->kept_bytes(); }

void MemoryPool::Clear() const { pages_->Clear(); }

std::shared_ptr<PooledMemory> PooledMemory::Take(const MemoryPool& pool,
                                                 uint64_t bytes) {
  Buffer memory = pool.pages_->Take(bytes);
  if (memory.size() == 0) return nullptr;
  return Follow(pool, std::move(memory));
}

std::shared_ptr<PooledMemory> PooledMemory::Follow(const MemoryPool& pool,
                                                   Buffer memory) {
  return std::make_shared<Block>(pool.pages_, std::move(memory));
}

}  // namespace haulway
