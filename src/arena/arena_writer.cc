// Design: only the producer takes memory of the arena. Memory that consumers
// released is reclaimed when room is needed (Reclaim). A writer that finds no
// room sleeps until a release wakes it, but also checks from time to time,
// since a consumer may be killed at any moment. Loans are filled in place and
// passed on by number.
//
// Not used: a mutex in shared memory, because a process killed while holding it
// leaves it locked, and a robust mutex requires repairing what is half done.

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "arena/arena_layout.h"
#include "arena/writer_state.h"
#include "base/checked.h"
#include "haulway/arena.h"

namespace haulway {

namespace {

// A sleeping writer checks at least this often.
constexpr uint64_t kLongestSleepNs = 1'000'000'000;
// Smaller units are cheaper to send in other ways.
constexpr uint64_t kLeastApart = uint64_t{1} << 20;

}  // namespace

template <class Attempt>
Status ArenaWriter::State::WaitUntil(uint64_t wait_ns, const Attempt& attempt) {
  arena::ArenaHeader& header = region->header();
  const auto is_shut = [&] {
    return header.shutdown.load(std::memory_order_acquire) != 0;
  };
  if (is_shut()) return Status(Code::kCancelled, "the arena is shut down");
  Reclaim();
  if (attempt()) return Status();
  header.waits.fetch_add(1, std::memory_order_relaxed);
  const auto start = std::chrono::steady_clock::now();
  while (true) {
    const auto waited = static_cast<uint64_t>(
        std::chrono::duration_cast<std::chrono::nanoseconds>(
            std::chrono::steady_clock::now() - start)
            .count());
    if (is_shut()) return Status(Code::kCancelled, "the arena is shut down");
    if (waited >= wait_ns) {
      return Status(
          Code::kTimeout,
          fmt::format(
              "arena is full: {} of {} bytes and {} of {} units are in use",
              used, region->facts().capacity, out.size(),
              region->facts().slot_count));
    }
    const bool changed = arena::WaitOnBell(
        header.released, spinner, std::min(wait_ns - waited, kLongestSleepNs),
        [&] {
          return is_shut() || loan_dropped.load(std::memory_order_acquire) ||
                 header.releases.load(std::memory_order_seq_cst) !=
                     releases_seen;
        });
    if (!changed) continue;
    Reclaim();
    if (attempt()) return Status();
  }
}

ArenaWriter::ArenaWriter(std::unique_ptr<State> state)
    : state_(std::move(state)) {}
ArenaWriter::~ArenaWriter() = default;

Status ArenaWriter::Begin(uint64_t wait_ns) {
  const std::lock_guard lock(state_->mutex);
  if (state_->open) {
    return Status(Code::kInvalidArgument, "a unit is open already");
  }
  HAULWAY_TRY(state_->WaitUntil(
      wait_ns, [this] { return state_->TakeSlot(&state_->open_slot); }));
  state_->open = true;
  state_->open_bytes = 0;
  return Status();
}

Status ArenaWriter::BeginApart(std::span<ArenaRange> ranges) {
  const std::lock_guard lock(state_->mutex);
  if (state_->open) {
    return Status(Code::kInvalidArgument, "a unit is open already");
  }
  uint64_t bytes = 0;
  for (ArenaRange& range : ranges) {
    range.offset = bytes;
    uint64_t end = 0;
    if (!CheckedAdd(bytes, range.bytes, &end) ||
        !CheckedRoundUp(end, arena::kAlignment, &bytes)) {
      return Status(Code::kLimit, "unit too large");
    }
  }
  if (bytes < kLeastApart) {
    return Status(Code::kLimit, "unit too small for memory of its own");
  }
  state_->Reclaim();
  if (state_->free_slots.empty()) {
    return Status(Code::kTimeout, "all units are in use");
  }
  HAULWAY_ASSIGN(auto apart, state_->overflow.Take(bytes));
  (void)state_->TakeEmptySlot(&state_->open_slot);
  State::Slot& unit = state_->slots[state_->open_slot];
  const uint64_t start =
      apart->offset() - state_->region->facts().payload_offset;
  for (ArenaRange& range : ranges) {
    range.unit = {state_->open_slot, unit.generation};
    range.offset += start;
  }
  state_->CountUsed(static_cast<int64_t>(apart->size()));
  unit.apart = std::move(apart);
  unit.bytes = bytes;
  state_->open = true;
  state_->open_bytes = bytes;
  state_->region->header().overflows.fetch_add(1, std::memory_order_relaxed);
  return Status();
}

Result<ArenaRange> ArenaWriter::Reserve(uint64_t bytes, uint64_t wait_ns) {
  const std::lock_guard lock(state_->mutex);
  if (!state_->open) return Status(Code::kInvalidArgument, "no unit is open");
  State::Slot& unit = state_->slots[state_->open_slot];
  if (unit.apart != nullptr) {
    return Status(Code::kLimit, "the unit's own memory is taken");
  }
  // Memory of the open unit is not released before the unit is committed.
  const uint64_t capacity =
      state_->IsPool() ? state_->unit_limit : state_->region->facts().capacity;
  const uint64_t taken = unit.bytes;
  if (bytes > capacity ||
      state_->placement->Footprint(bytes) > capacity - taken) {
    return Status(
        Code::kLimit,
        fmt::format("unit of {} bytes is larger than its {} of {}",
                    taken + bytes, state_->IsPool() ? "segment" : "arena",
                    capacity));
  }
  ArenaRange range = {{state_->open_slot, unit.generation}, 0, bytes};
  HAULWAY_TRY(state_->WaitUntil(wait_ns, [&] {
    return state_->TakeBytes(state_->open_slot, bytes, &range.offset);
  }));
  state_->open_bytes = unit.bytes;
  return range;
}

Result<ArenaRange> ArenaWriter::Write(std::span<const std::byte> bytes,
                                      uint64_t wait_ns, int threads) {
  HAULWAY_ASSIGN(const ArenaRange range, Reserve(bytes.size(), wait_ns));
  Fill(range, bytes, threads);
  return range;
}

void ArenaWriter::Fill(const ArenaRange& range,
                       std::span<const std::byte> bytes, int threads) const {
  state_->crew.Copy(At(range), bytes, threads);
}

Result<UnitRef> ArenaWriter::Commit(Audience audience) {
  const std::lock_guard lock(state_->mutex);
  if (!state_->open) return Status(Code::kInvalidArgument, "no unit is open");
  const uint32_t slot = state_->open_slot;
  state_->Publish(slot, audience);
  if (state_->slots[slot].apart == nullptr) state_->overflow.PassBy();
  state_->out.push_back(slot);
  state_->open = false;
  return UnitRef{slot, state_->slots[slot].generation};
}

void ArenaWriter::Unsend(UnitRef unit, Audience audience) {
  const std::lock_guard lock(state_->mutex);
  const arena::ArenaFacts& facts = state_->region->facts();
  if (unit.slot >= facts.slot_count || unit.generation == 0 ||
      state_->slots[unit.slot].generation != unit.generation) {
    return;
  }
  for (uint32_t i = 0; i < facts.consumers; ++i) {
    uint32_t& owed = state_->sent[uint64_t{unit.slot} * facts.consumers + i];
    if ((audience >> i & 1) != 0 && owed > 0) --owed;
  }
  state_->loan_dropped.store(true, std::memory_order_release);
}

void ArenaWriter::Forget(uint32_t consumer) {
  const std::lock_guard lock(state_->mutex);
  if (consumer >= state_->region->facts().consumers) return;
  state_->listening &= ~(Audience{1} << consumer);
  state_->loan_dropped.store(true, std::memory_order_release);
}

Status ArenaWriter::Abort() {
  const std::lock_guard lock(state_->mutex);
  if (!state_->open) return Status(Code::kInvalidArgument, "no unit is open");
  state_->FreeSlot(state_->open_slot);
  state_->open = false;
  state_->open_bytes = 0;
  return Status();
}

bool ArenaWriter::in_unit() const { return state_->open; }
uint64_t ArenaWriter::unit_bytes() const { return state_->open_bytes; }

std::span<std::byte> ArenaWriter::At(const ArenaRange& range) const {
  if (state_->region->IsBeyond(range.offset)) {
    const arena::MappedRange& apart = *state_->slots[range.unit.slot].apart;
    const uint64_t start =
        apart.offset() - state_->region->facts().payload_offset;
    return {apart.data() + (range.offset - start), range.bytes};
  }
  return {state_->region->payload() + range.offset, range.bytes};
}

Result<ArenaRange> ArenaWriter::Lend(uint64_t bytes, uint64_t wait_ns) {
  const std::lock_guard lock(state_->mutex);
  if (state_->region->facts().kind == static_cast<uint32_t>(ArenaKind::kRing)) {
    return Status(Code::kUnsupported, "a ring lends no memory");
  }
  const uint64_t capacity =
      state_->IsPool() ? state_->unit_limit : state_->region->facts().capacity;
  if (bytes > capacity || state_->placement->Footprint(bytes) > capacity) {
    return Status(
        Code::kLimit,
        fmt::format("loan of {} bytes is larger than {}", bytes, capacity));
  }
  uint32_t slot = 0;
  uint64_t offset = 0;
  HAULWAY_TRY(state_->WaitUntil(wait_ns, [&] {
    if (!state_->TakeSlot(&slot)) return false;
    if (state_->TakeBytes(slot, bytes, &offset)) return true;
    state_->FreeSlot(slot);
    return false;
  }));
  State::Slot& unit = state_->slots[slot];
  unit.lent.store(true, std::memory_order_release);
  state_->out.push_back(slot);
  return ArenaRange{{slot, unit.generation}, offset, bytes};
}

ArenaRange ArenaWriter::FindLoan(std::span<const std::byte> bytes) const {
  const std::byte* base = state_->region->payload();
  const auto start = reinterpret_cast<uintptr_t>(bytes.data());
  const auto first = reinterpret_cast<uintptr_t>(base);
  if (start < first || !state_->region->Holds(start - first, bytes.size())) {
    return {};
  }
  const uint64_t offset = start - first;
  const std::lock_guard lock(state_->mutex);
  for (const uint32_t slot : state_->out) {
    const State::Slot& unit = state_->slots[slot];
    if (!unit.lent.load(std::memory_order_acquire)) continue;
    for (const State::Piece& piece : unit.pieces) {
      if (offset >= piece.offset &&
          offset + bytes.size() <= piece.offset + piece.bytes) {
        return {{slot, unit.generation}, offset, bytes.size()};
      }
    }
  }
  return {};
}

Status ArenaWriter::Send(UnitRef loan, Audience audience) {
  const std::lock_guard lock(state_->mutex);
  if (loan.slot >= state_->region->facts().slot_count ||
      state_->slots[loan.slot].generation != loan.generation ||
      !state_->slots[loan.slot].lent.load(std::memory_order_acquire)) {
    return Status(Code::kInvalidArgument, "not a loan");
  }
  state_->Publish(loan.slot, audience);
  return Status();
}

void ArenaWriter::DropLoan(UnitRef loan) {
  if (loan.slot >= state_->region->facts().slot_count ||
      state_->slots[loan.slot].generation != loan.generation) {
    return;
  }
  state_->slots[loan.slot].lent.store(false, std::memory_order_release);
  state_->loan_dropped.store(true, std::memory_order_release);
  state_->region->header().released.Ring();
}

bool ArenaWriter::LendsAll() const {
  const std::lock_guard lock(state_->mutex);
  return std::ranges::all_of(state_->out, [this](uint32_t slot) {
    return state_->slots[slot].lent.load(std::memory_order_acquire);
  });
}

void ArenaWriter::AwaitRelease(uint64_t wait_ns,
                               const std::function<bool()>& or_until) {
  arena::ArenaHeader& header = state_->region->header();
  uint64_t seen = 0;
  {
    const std::lock_guard lock(state_->mutex);
    seen = state_->releases_seen;
  }
  (void)arena::WaitOnBell(header.released, state_->spinner, wait_ns, [&] {
    return header.shutdown.load(std::memory_order_acquire) != 0 ||
           state_->loan_dropped.load(std::memory_order_acquire) ||
           header.releases.load(std::memory_order_seq_cst) != seen ||
           or_until();
  });
}

void ArenaWriter::CountFallback() {
  state_->region->header().fallbacks.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace haulway
