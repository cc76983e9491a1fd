// Memory for tensors, made of the pages that cost least.
//
// A huge page is the cheaper kind where the machine has one at hand: 0.25 ms
// for 2 MiB against 0.5 ms in small ones. Where a host has to give its memory
// back first (a virtual machine that reports what is free, some idle seconds
// later) it is the dearer one: 4 to 20 ms against 1. Neither can be known, and
// it changes within one allocation. So memory is brought in just before it is
// written to, in units of 2 MiB, every unit is timed, and a PageChooser says of
// which kind the next one is.
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

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/page_chooser.h"
#include "haulway/buffer.h"
#include "haulway/options.h"
#include "haulway/status.h"

namespace haulway {

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
