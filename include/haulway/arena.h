// An Arena is shared memory that a producer fills and that consumers in other
// processes read in place, without a copy and without a server process.
//
// The producer groups what it writes into units, one unit for each item that it
// hands over. A consumer claims a unit and holds the unit through Buffers. When
// the last of these Buffers is destroyed, the unit's memory returns to the
// producer; units may be released in any order. The memory is an unnamed file
// of the kernel (memfd): it is passed on as a descriptor and freed when the
// last process that holds it ends.
//
// Trust: each side checks what it reads from the other. Neither side can make
// the other read or write outside the arena. The content of the payload is the
// peer's to choose, and the peer may change it later.
// Processes: an arena survives fork(). Only the process that claimed a unit
// releases it.

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
  uint64_t max_bytes = 0;   // Size of the payload area; a pool ignores it.
  uint64_t unit_bytes = 0;  // Used by a pool only.
  // Limit for separate memory of units that are too large for the arena, or
  // that find it full of units which consumers hold. 0 disables such memory. A
  // ring ignores it.
  uint64_t overflow_bytes = UINT64_MAX;
  uint32_t max_units = 4096;  // Units in use at the same time.
  uint32_t consumers = 1;     // At most 64; numbered from 0.
  bool huge_pages = false;    // A hint: ask for huge pages.
  bool prefault = false;  // Get all memory now, and fail now if there is none.
};

// Identifies one use of one unit. The next use of the same slot has another
// generation.
struct UnitRef {
  uint32_t slot = 0;
  uint32_t generation = 0;  // 0 is never used.
  bool operator==(const UnitRef&) const = default;
};

// Bytes of a unit. `offset` counts from the start of the payload area.
struct ArenaRange {
  UnitRef unit;
  uint64_t offset = 0;
  uint64_t bytes = 0;
};

struct ArenaStats {
  ArenaKind kind = ArenaKind::kVariable;
  uint32_t consumers = 1;
  uint32_t creator = 0;          // Process id.
  uint32_t producer = 0;         // Process id; 0 until there is a producer.
  uint64_t bytes = 0;            // Size of the payload area.
  uint64_t used = 0;             // Bytes that units take now.
  uint64_t high_water = 0;       // The largest value of `used` so far.
  uint64_t units = 0;            // Units committed so far.
  uint64_t waits = 0;            // How often the producer found the arena full.
  uint64_t fallbacks = 0;        // How often data took another route,
  uint64_t overflows = 0;        // including units with separate memory.
  uint64_t committed_bytes = 0;  // Bytes of all units so far.
  uint64_t released_bytes = 0;
  uint64_t releases = 0;  // Units released so far, each by each consumer.
};

class ArenaWriter;
class ArenaReader;

// A set of consumers: bit 1 << n stands for consumer n.
using Audience = uint64_t;
inline constexpr Audience kEveryone = ~Audience{0};

class HAULWAY_EXPORT Arena {
 public:
  // Fails with kInvalidArgument for invalid sizes, and with kLimit if the
  // system has not enough memory.
  static Result<std::shared_ptr<Arena>> Create(const ArenaOptions& options);
  // Joins an arena of another process. Takes ownership of `fd`, even on
  // failure. Fails with kCorrupt if `fd` is not an arena.
  static Result<std::shared_ptr<Arena>> Attach(int fd);
  ~Arena();

  // The descriptor to pass on. The arena keeps ownership.
  int fd() const;
  ArenaStats stats() const;

  // Opens the producer's end. There must be only one writer at a time, in one
  // process.
  Result<std::unique_ptr<ArenaWriter>> OpenWriter();
  // Opens the end of one consumer. Each consumer releases units on its own.
  Result<std::unique_ptr<ArenaReader>> OpenReader(uint32_t consumer = 0);

  // Makes every wait for room fail with kCancelled, now and later.
  void Shutdown();
  // Makes a producer that waits for room check again. Cheap if none waits.
  void Wake();

 private:
  explicit Arena(std::shared_ptr<arena::Region> region);
  std::shared_ptr<arena::Region> region_;
};

// An ArenaWriter is the producer's end.
//
// Threads: only one unit is open at a time. Calls may come from several
// threads, one after the other. DropLoan() takes no lock and may be called at
// any time.
class HAULWAY_EXPORT ArenaWriter {
 public:
  ~ArenaWriter();

  // Opens a unit. Waits up to `wait_ns` for a slot, then fails with kTimeout.
  // Fails with kCancelled after Shutdown(), and with kInvalidArgument if a unit
  // is open already.
  Status Begin(uint64_t wait_ns);
  // Opens a unit in separate memory, for data that is too large for the arena.
  // The unit holds all of `ranges`: the caller sets their `bytes`, this call
  // sets their offsets. Fails with kLimit or kTimeout if there is no such
  // memory or if it is not worth getting; no unit is open then.
  Status BeginApart(std::span<ArenaRange> ranges);
  // Takes memory for the open unit, aligned to 64 bytes except in a ring. Fails
  // with kLimit if `bytes` could never fit, and with kTimeout or kCancelled.
  // After a failure the unit is still open.
  Result<ArenaRange> Reserve(uint64_t bytes, uint64_t wait_ns);
  // Reserve() followed by a copy of `bytes`, on up to `threads` threads if that
  // is faster.
  Result<ArenaRange> Write(std::span<const std::byte> bytes, uint64_t wait_ns,
                           int threads = 1);
  // Copies into a range that Reserve() or Lend() returned. Requires: equal
  // sizes.
  void Fill(const ArenaRange& range, std::span<const std::byte> bytes,
            int threads = 1) const;
  // Hands the unit over. Its memory is free again when each consumer in
  // `audience` has released it.
  Result<UnitRef> Commit(Audience audience = kEveryone);
  // Takes back a Commit() or Send() for these consumers, when the unit did not
  // reach them. No effect on a unit that is free already.
  void Unsend(UnitRef unit, Audience audience = kEveryone);
  // Stops waiting for a consumer that has ended, for this and all later units.
  void Forget(uint32_t consumer);
  Status Abort();
  bool in_unit() const;
  uint64_t unit_bytes() const;  // Size of the open unit, or of the one before.

  // Returns the address of a range in this process. Requires: this writer
  // returned the range.
  std::span<std::byte> At(const ArenaRange& range) const HAULWAY_LIFETIME_BOUND;

  // Lends memory of a separate unit, in which the caller makes a result in
  // place. The memory is kept until DropLoan() was called and everything sent
  // from it was released.
  Result<ArenaRange> Lend(uint64_t bytes, uint64_t wait_ns);
  // Returns the part of a loan that is exactly `bytes`. If no loan holds all of
  // `bytes`, returns a range with generation 0.
  ArenaRange FindLoan(std::span<const std::byte> bytes) const;
  // Hands a loan over; may be called again for the same loan. Fails with
  // kInvalidArgument if `loan` is not a loan.
  Status Send(UnitRef loan, Audience audience = kEveryone);
  void DropLoan(UnitRef loan);
  // Returns whether every unit in use is a loan that was not dropped: then no
  // consumer can make room by a release.
  bool LendsAll() const;

  // Counts in the statistics that something did not go through the arena.
  void CountFallback();
  // Waits until a unit may have been released, `or_until` returns true, or
  // `wait_ns` have passed. Arena::Wake() makes it call `or_until` again.
  void AwaitRelease(uint64_t wait_ns, const std::function<bool()>& or_until);

 private:
  friend class Arena;
  class State;
  explicit ArenaWriter(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// An ArenaReader is a consumer's end. Threads: every method may be called from
// any thread.
class HAULWAY_EXPORT ArenaReader {
 public:
  ~ArenaReader();

  // Claims a committed unit. The unit is released when the last copy of the
  // result is destroyed. Fails with kCorrupt if there is no such unit, or no
  // longer. Each consumer must claim a unit only once.
  Result<std::shared_ptr<const void>> Claim(UnitRef unit);
  // Returns the unit that was committed after the one that the last call
  // returned. Fails with kUnavailable if there is none yet.
  Result<UnitRef> Next();
  // Returns bytes of the arena; the result keeps `claim`. Fails with kCorrupt
  // if the range is not within the arena.
  Result<Buffer> View(const std::shared_ptr<const void>& claim, uint64_t offset,
                      uint64_t bytes, bool writable = true) const;

 private:
  friend class Arena;
  ArenaReader(std::shared_ptr<arena::Region> region, uint32_t consumer);
  std::shared_ptr<arena::Region> region_;
  uint32_t consumer_;
  uint64_t next_ = 0;
};

// Copies large blocks so that they stay in the processor's caches, where one
// large memcpy() would bypass them. Requires: `to` has the size of `from` and
// does not overlap it.
HAULWAY_EXPORT void CopyBytes(std::span<std::byte> to,
                              std::span<const std::byte> from);

// An arena that some process of this machine holds.
struct ArenaHolding {
  ArenaStats stats;
  std::vector<uint32_t> holders;  // Processes that have the arena open, sorted.
  bool orphaned = false;          // The process that created it has ended.
};
// Lists the arenas that this user may see, by reading /proc.
HAULWAY_EXPORT Result<std::vector<ArenaHolding>> ListArenas();

}  // namespace haulway
