#include "arena/copy_crew.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <new>
#include <system_error>
#include <thread>

#include "arena/copy_chunk.h"
#include "arena/futex.h"
#include "arena/stream_bytes.h"
#include "haulway/arena.h"

namespace haulway::arena {

namespace {

// Smallest copy that uses helpers: waking a thread takes as long as copying
// some hundred kilobytes.
constexpr size_t kLeastBytes = size_t{2} << 20;
constexpr size_t kMostThreads = 16;
constexpr uint64_t kLongestSleepNs = 1'000'000'000;

void CopyBy(CopyWay way, std::span<std::byte> to,
            std::span<const std::byte> from) {
  if (way == CopyWay::kStreamed) {
    StreamBytes(to, from);
  } else {
    CopyBytes(to, from);
  }
}

}  // namespace

// State shared by the threads of a crew; each of them owns a reference.
class CopyCrew::Job {
 public:
  // Requires: to.size() > 0; one call at a time.
  void Run(std::span<std::byte> to, std::span<const std::byte> from,
           size_t threads, CopyWay way);
  // Thread function of a helper. `number` counts from 1.
  void Help(size_t number);
  void End();

 private:
  struct alignas(64) Part {
    std::atomic<size_t> next{0};
    size_t end = 0;
  };
  void CopyParts(size_t first);

  // The current copy. Changed only while `open_` is false and no helper is
  // active.
  std::span<std::byte> to_;
  std::span<const std::byte> from_;
  CopyWay way_ = CopyWay::kCached;
  std::array<Part, kMostThreads> parts_;
  size_t part_count_ = 0;

  std::atomic<bool> open_{false};
  std::atomic<bool> over_{false};
  Word turn_{0};    // Counts copies; helpers sleep on this word.
  Word active_{0};  // Helpers that may be copying.
  Bell done_{};
  Spinner spinner_;
};

void CopyCrew::Job::Run(std::span<std::byte> to,
                        std::span<const std::byte> from, size_t threads,
                        CopyWay way) {
  to_ = to;
  from_ = from;
  way_ = way;
  const size_t chunks = (from.size() + kCopyChunk - 1) / kCopyChunk;
  part_count_ = std::min(threads, chunks);
  for (size_t i = 0; i < part_count_; ++i) {
    parts_[i].next.store(chunks * i / part_count_, std::memory_order_relaxed);
    parts_[i].end = chunks * (i + 1) / part_count_;
  }
  open_.store(true, std::memory_order_seq_cst);
  turn_.fetch_add(1, std::memory_order_release);
  FutexWakeAll(turn_);
  CopyParts(0);
  // A helper increments `active_` before it checks `open_`. So either the
  // helper sees the copy closed, or the loop below sees the helper.
  open_.store(false, std::memory_order_seq_cst);
  const auto all_out = [this] {
    return active_.load(std::memory_order_seq_cst) == 0;
  };
  while (!WaitOnBell(done_, spinner_, kLongestSleepNs, all_out)) {
  }
}

void CopyCrew::Job::CopyParts(size_t first) {
  for (size_t i = 0; i < part_count_; ++i) {
    Part& part = parts_[(first + i) % part_count_];
    while (true) {
      const size_t chunk = part.next.fetch_add(1, std::memory_order_relaxed);
      if (chunk >= part.end) break;
      const size_t start = chunk * kCopyChunk;
      const size_t length = std::min(kCopyChunk, from_.size() - start);
      CopyBy(way_, to_.subspan(start, length), from_.subspan(start, length));
    }
  }
}

void CopyCrew::Job::Help(size_t number) {
  uint32_t seen = 0;
  while (!over_.load(std::memory_order_acquire)) {
    const uint32_t turn = turn_.load(std::memory_order_acquire);
    if (turn == seen) {
      FutexWait(turn_, seen, kLongestSleepNs);
      continue;
    }
    seen = turn;
    active_.fetch_add(1, std::memory_order_seq_cst);
    if (open_.load(std::memory_order_seq_cst)) CopyParts(number);
    active_.fetch_sub(1, std::memory_order_seq_cst);
    done_.Ring();
  }
}

void CopyCrew::Job::End() {
  over_.store(true, std::memory_order_release);
  turn_.fetch_add(1, std::memory_order_release);
  FutexWakeAll(turn_);
}

CopyCrew::CopyCrew() = default;
CopyCrew::~CopyCrew() {
  if (job_ != nullptr && owner_ == ::getpid()) job_->End();
}

bool CopyCrew::Hire(size_t helpers) {
  const pid_t self = ::getpid();
  if (job_ != nullptr && owner_ != self) return false;
  owner_ = self;
  try {
    if (job_ == nullptr) job_ = std::make_shared<Job>();
    while (helpers_ < helpers) {
      std::thread([job = job_, number = helpers_ + 1] {
        job->Help(number);
      }).detach();
      ++helpers_;
    }
  } catch (const std::system_error&) {
    // The system has no more threads: the running ones do the work.
  } catch (const std::bad_alloc&) {
  }
  return job_ != nullptr;
}

void CopyCrew::Copy(std::span<std::byte> to, std::span<const std::byte> from,
                    int threads, CopyWay way) {
  if (from.empty()) return;
  const bool large = threads > 1 && from.size() >= kLeastBytes;
  std::unique_lock crew(mutex_, std::defer_lock);
  if (large && crew.try_lock()) {
    const size_t wanted = std::min(static_cast<size_t>(threads), kMostThreads);
    using Clock = std::chrono::steady_clock;
    const bool in_company = pace_.InCompany(from.size()) && Hire(wanted - 1);
    const Clock::time_point start = Clock::now();
    if (in_company) {
      job_->Run(to, from, wanted, way);
    } else {
      CopyBy(way, to, from);
    }
    pace_.Learn(in_company, from.size(), Clock::now() - start);
    return;
  }
  CopyBy(way, to, from);
}

}  // namespace haulway::arena
