// Memory for tensors, made of the pages that are fastest to populate.
//
// If the machine has huge pages available, they are faster: 0.25 ms for 2 MiB,
// against 0.5 ms in small pages. If the host has to supply the memory first (a
// virtual machine that reports free memory to its host, some idle seconds
// later), they are slower: 4 to 20 ms, against 1 ms. The state cannot be
// queried, and it changes within one allocation. So memory is populated just
// before it is written, in units of 2 MiB. Every unit is timed, and a
// PageChooser chooses the page size of the next one.
//
// Tried instead:
// - advice for every unit: each call waits until no other thread populates
//   memory, which serializes the threads;
// - advice for huge pages at the start: the first small unit waited for a slow
//   huge one, and two more were populated meanwhile (64 MiB: 39 ms instead of
//   33);
// - no more huge pages after the first slow one: one slow unit in sixteen made
//   most of the rest small;
// - one decision from the first pages of an allocation: 1.5 s for 1 GiB when
//   the machine had a few huge pages left;
// - no huge pages at all: half as fast wherever memory is available.

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

// FreshMemory is one zeroed allocation, aligned to 2 MiB, whose pages are not
// populated yet.
//
// Threads: BringIn() may be called from many at once.
class FreshMemory {
 public:
  static constexpr uint64_t kUnitBytes = 2 * kMiB;
  // Smaller allocations use small pages: finding the faster page size would
  // cost as much as it can save.
  static constexpr uint64_t kSmallestChosen = 8 * kMiB;

  // Fails with kLimit if there is no memory.
  static Result<FreshMemory> Allocate(uint64_t bytes);

  const Buffer& buffer() const { return buffer_; }

  // Populates all units that overlap `part`, except those that were populated
  // before or that another thread is populating. Does not change their content.
  // Cannot fail: pages that could not be populated fault when they are
  // accessed. Requires: `part` lies in buffer().
  void BringIn(std::span<const std::byte> part);

  // Populates the first two units and advises the faster page size for the
  // rest. For memory that is accessed at any time, in any order.
  void AdviseRest();

  // Returns text such as "12 of 512 units of 2 MiB in huge pages; one took 6.10
  // ms so, 0.90 ms in small pages", or an empty string if the allocation is
  // below kSmallestChosen.
  std::string Describe() const;

 private:
  struct Units;

  void AdviseUnit(std::span<std::byte> unit, PageKind kind);
  void BringInUnit(uint64_t unit);

  Buffer buffer_;
  std::shared_ptr<Units> units_;  // Null below kSmallestChosen.
};

}  // namespace haulway
