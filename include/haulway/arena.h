// An Arena is memory that a producer fills and consumers read in place, in
// other processes, without a copy and without a server between them.
//
// The producer groups what it writes into units, one for each item it hands
// over. A consumer claims a unit and holds it through Buffers; when the last
// of them is gone the unit's bytes go back to the producer, in any order.
// Nothing is named: the memory is an unnamed file of the kernel's, passed on
// as a descriptor and freed when the last process that holds it ends.
//
// Trust: each side checks what it reads from the other. Neither can make the
// other read or write outside the arena; what a peer writes into the bytes
// themselves is the peer's to choose, also later.
// Processes: survives fork(); a unit is given back only by the process that
// claimed it.

#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "haulway/buffer.h"
#include "haulway/status.h"

namespace haulway {

namespace arena {
class Region;
}

enum class ArenaKind : uint32_t {
  kVariable = 1,  // Units of any size, released in any order.
  kPool = 2,      // Units of at most unit_bytes, released in any order.
  kRing = 3,      // Bytes in a circle, released in order.
};

struct ArenaOptions {
  ArenaKind kind = ArenaKind::kVariable;
  uint64_t max_bytes = 0;   // Room for payloads; not used by a pool.
  uint64_t unit_bytes = 0;  // Of a pool only.
  // What units may take that are too large for the arena, or find it full of
  // what a consumer holds. 0 for none. Not used by a ring.
  uint64_t overflow_bytes = UINT64_MAX;
  uint32_t max_units = 4096;  // Units that can be out at the same time.
  uint32_t consumers = 1;     // At most 64; they count from 0.
  bool huge_pages = false;    // A hint.
  bool prefault = false;      // Take all memory now; fail now if there is none.
};

// Names one use of one unit; a later use of its slot has another generation.
struct UnitRef {
  uint32_t slot = 0;
  uint32_t generation = 0;  // 0 is never used.
  bool operator==(const UnitRef&) const = default;
};

// Bytes of a unit. `offset` counts from the start of the payloads.
struct ArenaRange {
  UnitRef unit;
  uint64_t offset = 0;
  uint64_t bytes = 0;
};

struct ArenaStats {
  ArenaKind kind = ArenaKind::kVariable;
  uint32_t consumers = 1;
  uint32_t creator = 0;          // Process ids.
  uint32_t producer = 0;         // 0 until there is one.
  uint64_t bytes = 0;            // Room for payloads.
  uint64_t used = 0;             // Taken by units now.
  uint64_t high_water = 0;       // The most that was ever used.
  uint64_t units = 0;            // Committed so far.
  uint64_t waits = 0;            // Times the producer found it full.
  uint64_t fallbacks = 0;        // Times something had to go another way,
  uint64_t overflows = 0;        // of these with memory of their own.
  uint64_t committed_bytes = 0;  // Of all units so far.
  uint64_t released_bytes = 0;
};

class ArenaWriter;
class ArenaReader;

// A set of consumers, the bit 1 << n standing for consumer n.
using Audience = uint64_t;
inline constexpr Audience kEveryone = ~Audience{0};

class HAULWAY_EXPORT Arena {
 public:
  // kInvalidArgument for sizes that make no sense, kLimit where the system
  // has not that much.
  static Result<std::shared_ptr<Arena>> Create(const ArenaOptions& options);
  // Joins an arena of another process; owns `fd` from here on, also if it
  // fails. kCorrupt if it is not an arena.
  static Result<std::shared_ptr<Arena>> Attach(int fd);
  ~Arena();

  // The descriptor to pass on; stays the arena's.
  int fd() const;
  ArenaStats stats() const;

  // There is to be one writer at a time, in one process.
  Result<std::unique_ptr<ArenaWriter>> OpenWriter();
  // The end of one of the consumers; each has its own count of releases.
  Result<std::unique_ptr<ArenaReader>> OpenReader(uint32_t consumer = 0);

  // Makes every wait for room fail with kCancelled, now and later.
  void Shutdown();
  // Makes a producer that waits for room look up. Cheap if none does.
  void Wake();

 private:
  explicit Arena(std::shared_ptr<arena::Region> region);
  std::shared_ptr<arena::Region> region_;
};

// An ArenaWriter is the producer's end.
//
// Threads: one unit is open at a time; calls may come from several threads,
// one after the other. DropLoan() takes no lock and may come at any time.
class HAULWAY_EXPORT ArenaWriter {
 public:
  ~ArenaWriter();

  // Opens a unit. Waits up to `wait_ns` for a slot: kTimeout. kCancelled after
  // Shutdown(). kInvalidArgument if a unit is open.
  Status Begin(uint64_t wait_ns);
  // Opens a unit in memory of its own, beyond the arena, that holds all of
  // `ranges`, whose `bytes` say how much; sets where they lie. For what is too
  // large for the arena. kLimit, kTimeout if there is none to be had, or it
  // does not pay; then no unit is open.
  Status BeginApart(std::span<ArenaRange> ranges);
  // Takes bytes for the open unit, 64-byte aligned except in a ring. kLimit if
  // they could never fit; kTimeout, kCancelled. The unit stays open.
  Result<ArenaRange> Reserve(uint64_t bytes, uint64_t wait_ns);
  // Reserve(), and copies `bytes` there, on `threads` threads if it pays.
  Result<ArenaRange> Write(std::span<const std::byte> bytes, uint64_t wait_ns,
                           int threads = 1);
  // Copies into a range that Reserve() or Lend() gave. Requires: equal sizes.
  void Fill(const ArenaRange& range, std::span<const std::byte> bytes,
            int threads = 1) const;
  // Hands the unit over; it is free again when each of `audience` released it.
  Result<UnitRef> Commit(Audience audience = kEveryone);
  // Undoes what Commit() or Send() said of these consumers: the unit did not
  // reach them. No effect on a unit that is free by now.
  void Unsend(UnitRef unit, Audience audience = kEveryone);
  // Stops waiting for a consumer that is gone, now and later.
  void Forget(uint32_t consumer);
  Status Abort();
  bool in_unit() const;
  uint64_t unit_bytes() const;  // Of the open unit, or the one before.

  // Where a range lies in this process. Requires: it came from this writer.
  std::span<std::byte> At(const ArenaRange& range) const HAULWAY_LIFETIME_BOUND;

  // Lends memory of a unit of its own, in which to make a result in place.
  // The bytes are kept until DropLoan() and the release of all that was sent.
  Result<ArenaRange> Lend(uint64_t bytes, uint64_t wait_ns);
  // The loan that holds all of `bytes`, if there is one, as a range of just
  // them; else a range with generation 0.
  ArenaRange FindLoan(std::span<const std::byte> bytes) const;
  // Hands a loan over, once more. kInvalidArgument if it is none.
  Status Send(UnitRef loan, Audience audience = kEveryone);
  void DropLoan(UnitRef loan);

  // Whether `bytes` would fit into an empty arena.
  bool CouldFit(uint64_t bytes) const;
  // Notes in the stats that something did not go through the arena.
  void CountFallback();
  // Waits until something may have been released, `or_until` says so, or
  // `wait_ns` have passed; Arena::Wake() makes it ask again.
  void AwaitRelease(uint64_t wait_ns, const std::function<bool()>& or_until);

 private:
  friend class Arena;
  class State;
  explicit ArenaWriter(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// An ArenaReader is a consumer's end. Threads: any, for every method.
class HAULWAY_EXPORT ArenaReader {
 public:
  ~ArenaReader();

  // Takes hold of a committed unit; it is released when the last copy of the
  // result is gone. kCorrupt if there is no such unit, or not any more. A unit
  // is to be claimed once by each consumer.
  Result<std::shared_ptr<const void>> Claim(UnitRef unit);
  // The unit after the one this call returned before, in order of commits.
  // kUnavailable if it is not there yet.
  Result<UnitRef> Next();
  // Bytes of the arena, kept by `claim`. kCorrupt if they are not within it.
  Result<Buffer> View(const std::shared_ptr<const void>& claim, uint64_t offset,
                      uint64_t bytes, bool writable = true) const;

 private:
  friend class Arena;
  ArenaReader(std::shared_ptr<arena::Region> region, uint32_t consumer);
  std::shared_ptr<arena::Region> region_;
  uint32_t consumer_;
  uint64_t next_ = 0;
};

// Copies large blocks within the processor's caches where memcpy() of the
// whole would go around them. Requires: `to` is of equal size, apart from
// `from`.
HAULWAY_EXPORT void CopyBytes(std::span<std::byte> to,
                              std::span<const std::byte> from);

// An arena that some process of this machine holds.
struct ArenaHolding {
  ArenaStats stats;
  std::vector<uint32_t> holders;  // Processes that have it open, sorted.
  bool orphaned = false;          // Its creator is gone.
};
// Those that this user may see, by looking through /proc.
HAULWAY_EXPORT Result<std::vector<ArenaHolding>> ListArenas();

}  // namespace haulway
