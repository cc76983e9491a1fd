// Memory for tensors, made of the pages that cost least.
//
// A huge page is the cheaper kind where the machine has one at hand: 0.25 ms
// for 2 MiB against 0.5 ms in small ones. Where a host has to give its memory
// back first (a virtual machine that reports what is free, some idle seconds
// later) it is the dearer one: 4 to 20 ms against 1. Neither can be known, and
// it changes within one allocation. So memory is brought in just before it is
// written to, in units of 2 MiB, and every unit is timed: huge pages are taken
// as long as they have cost, in all, little more than small ones would have
// (an eighth of the time), what they saved counted against it. So dear ones are
// soon left, tried again later, and one now and then changes nothing.
//
// Tried instead: advice for every unit, which waits until no other thread
// brings memory in, so that one at a time did; advice for huge pages to begin
// with, where the first small unit waited for a dear huge one and two more were
// taken meanwhile (64 MiB: 39 ms against 33); to leave huge pages at the first
// dear one, where one in sixteen made most of the rest small; to decide once,
// by the first pages of an allocation, which took 1.5 s for 1 GiB when the
// machine had a few huge pages left; and never to take huge pages, which is
// half as fast wherever memory is at hand.

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>

#include "haulway/buffer.h"
#include "haulway/options.h"
#include "haulway/status.h"

namespace haulway {

enum class PageKind : uint8_t { kSmall, kHuge };

// A PageChooser says of which kind the next unit of memory should be, by what
// the units before it took.
//
// Threads: any number at once.
class PageChooser {
 public:
  PageKind Next();
  // Told of every unit that Next() was asked for.
  void Took(PageKind kind, uint64_t nanoseconds);
  // What Next() would say, of memory that is not timed.
  PageKind kinder() const;

  struct Cost {
    uint64_t units = 0;
    uint64_t nanoseconds = 0;  // Of all of them.
  };
  Cost cost(PageKind kind) const;

 private:
  static size_t Row(PageKind kind) { return static_cast<size_t>(kind); }

  // These two require the mutex; the first, that a small unit was timed.
  int64_t SmallMean() const;
  PageKind Kinder() const;

  mutable std::mutex mutex_;
  Cost costs_[2] HAULWAY_GUARDED_BY(mutex_);
  uint64_t under_way_[2] HAULWAY_GUARDED_BY(mutex_) = {};
  // Nanoseconds: the last huge unit, and what all of them took more than small
  // ones would have; less than nothing where they took less.
  int64_t last_huge_ HAULWAY_GUARDED_BY(mutex_) = 0;
  // Of them, what is not in the sum: no small one was timed yet.
  Cost unjudged_ HAULWAY_GUARDED_BY(mutex_);
  int64_t wasted_ HAULWAY_GUARDED_BY(mutex_) = 0;
};

// FreshMemory is one zeroed allocation, aligned to 2 MiB, of which nothing has
// been touched yet.
//
// Threads: BringIn() may be called from many at once.
class FreshMemory {
 public:
  static constexpr uint64_t kUnitBytes = 2 * kMiB;
  // Below this, looking for the kinder page costs as much as it can save, and
  // pages are small.
  static constexpr uint64_t kSmallestChosen = 8 * kMiB;

  // Fails with kLimit if the system has no such memory.
  static Result<FreshMemory> Allocate(uint64_t bytes);

  const Buffer& buffer() const { return buffer_; }

  // Makes all units present that `part` touches, but those that were brought
  // in before or are being brought in by another thread. Does not change what
  // they hold, and cannot fail: pages that could not be had are faulted in
  // when they are touched. Requires: `part` lies in buffer().
  void BringIn(std::span<const std::byte> part);

  // For memory that is touched at any time, in any order: brings in the first
  // two units, and lets the rest be of the kind that took less.
  void AdviseRest();

  // "12 of 512 units of 2 MiB in huge pages; one took 6.10 ms so, 0.90 ms in
  // small pages"; empty if nothing was chosen.
  std::string Describe() const;

 private:
  struct Units;

  void AdviseUnit(std::span<std::byte> unit, PageKind kind);
  void BringInUnit(uint64_t unit);

  Buffer buffer_;
  std::shared_ptr<Units> units_;  // Null if nothing is to be chosen.
};

}  // namespace haulway
