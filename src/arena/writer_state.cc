#include "arena/writer_state.h"

#include <algorithm>
#include <utility>

namespace haulway {

namespace {

std::unique_ptr<arena::Placement> MakePlacement(
    const arena::ArenaFacts& facts) {
  if (facts.kind == static_cast<uint32_t>(ArenaKind::kRing)) {
    return std::make_unique<arena::RingPlacement>(facts.payload_bytes,
                                                  facts.capacity);
  }
  return std::make_unique<arena::HeapPlacement>(facts.capacity);
}

}  // namespace

ArenaWriter::State::State(std::shared_ptr<arena::Region> shared)
    : region(std::move(shared)),
      placement(MakePlacement(region->facts())),
      overflow(
          region->fd(), region->facts().total_bytes,
          region->header().overflow_limit.load(std::memory_order_acquire)) {
  const arena::ArenaFacts& facts = region->facts();
  if (facts.kind == static_cast<uint32_t>(ArenaKind::kPool)) {
    unit_limit = facts.unit_bytes;
  }
  slots = std::make_unique<Slot[]>(facts.slot_count);
  sent.resize(uint64_t{facts.slot_count} * facts.consumers);
  if (facts.consumers < 64) listening = (Audience{1} << facts.consumers) - 1;
  free_slots.reserve(facts.slot_count);
  for (uint32_t i = facts.slot_count; i > 0; --i) free_slots.push_back(i - 1);
}

bool ArenaWriter::State::TakeSlot(uint32_t* slot) {
  if (free_slots.empty()) return false;
  if (IsPool()) {
    // A pool's unit has its whole segment from the start.
    const auto offset = placement->Take(unit_limit);
    if (!offset.has_value()) return false;
    slots[free_slots.back()].pieces.push_back({*offset, unit_limit});
    CountUsed(static_cast<int64_t>(unit_limit));
  }
  return TakeEmptySlot(slot);
}

bool ArenaWriter::State::TakeEmptySlot(uint32_t* slot) {
  if (free_slots.empty()) return false;
  const uint32_t taken = free_slots.back();
  Slot& unit = slots[taken];
  free_slots.pop_back();
  unit.generation = unit.generation == UINT32_MAX ? 1 : unit.generation + 1;
  unit.published = false;
  unit.bytes = 0;
  const uint32_t consumers = region->facts().consumers;
  for (uint32_t i = 0; i < consumers; ++i) {
    sent[uint64_t{taken} * consumers + i] = 0;
    // From here on, late releases of the slot's previous unit have no effect.
    region->released(taken, i).store(uint64_t{unit.generation} << 32,
                                     std::memory_order_release);
  }
  *slot = taken;
  return true;
}

bool ArenaWriter::State::TakeBytes(uint32_t slot, uint64_t bytes,
                                   uint64_t* offset) {
  Slot& unit = slots[slot];
  if (IsPool()) {
    const uint64_t footprint = placement->Footprint(bytes);
    if (footprint > unit_limit - unit.bytes) return false;
    *offset = unit.pieces.front().offset + unit.bytes;
    unit.bytes += footprint;
    return true;
  }
  const auto taken = placement->Take(bytes);
  if (!taken.has_value()) return false;
  unit.pieces.push_back({*taken, bytes});
  unit.bytes += bytes;
  CountUsed(static_cast<int64_t>(placement->Footprint(bytes)));
  *offset = *taken;
  return true;
}

void ArenaWriter::State::FreeSlot(uint32_t slot) {
  Slot& unit = slots[slot];
  region->committed(slot).generation.store(0, std::memory_order_release);
  for (const Piece& piece : unit.pieces) {
    placement->Give(piece.offset, piece.bytes);
    CountUsed(-static_cast<int64_t>(placement->Footprint(piece.bytes)));
  }
  unit.pieces.clear();
  if (unit.apart != nullptr) {
    CountUsed(-static_cast<int64_t>(unit.apart->size()));
    overflow.Give(unit.apart->offset());
    unit.apart.reset();
  }
  free_slots.push_back(slot);
}

void ArenaWriter::State::Reclaim() {
  const uint64_t releases =
      region->header().releases.load(std::memory_order_seq_cst);
  const bool dropped = loan_dropped.exchange(false, std::memory_order_acq_rel);
  if (releases == releases_seen && !dropped) return;
  releases_seen = releases;
  const auto is_free = [this](uint32_t slot) {
    return IsReleased(slot) &&
           !slots[slot].lent.load(std::memory_order_acquire);
  };
  // In order, so that a ring's oldest bytes are freed first.
  auto kept = out.begin();
  for (const uint32_t slot : out) {
    if (is_free(slot)) {
      FreeSlot(slot);
    } else {
      *kept++ = slot;
    }
  }
  out.erase(kept, out.end());
}

bool ArenaWriter::State::IsReleased(uint32_t slot) const {
  const uint32_t consumers = region->facts().consumers;
  for (uint32_t i = 0; i < consumers; ++i) {
    const uint32_t owed = sent[uint64_t{slot} * consumers + i];
    if (owed == 0 || (listening >> i & 1) == 0) continue;
    const uint64_t word =
        region->released(slot, i).load(std::memory_order_acquire);
    if (word >> 32 != slots[slot].generation || (word & UINT32_MAX) < owed) {
      return false;
    }
  }
  return true;
}

void ArenaWriter::State::Publish(uint32_t slot, Audience audience) {
  Slot& unit = slots[slot];
  arena::ArenaHeader& header = region->header();
  if (!unit.published) {
    unit.published = true;
    arena::CommittedUnit& committed = region->committed(slot);
    committed.bytes.store(unit.bytes, std::memory_order_relaxed);
    committed.generation.store(unit.generation, std::memory_order_release);
    const uint64_t sequence =
        header.committed_units.load(std::memory_order_relaxed);
    region->order(sequence).store(slot, std::memory_order_release);
    header.committed_bytes.fetch_add(unit.bytes, std::memory_order_relaxed);
    header.committed_units.store(sequence + 1, std::memory_order_release);
  }
  const uint32_t consumers = region->facts().consumers;
  for (uint32_t i = 0; i < consumers; ++i) {
    sent[uint64_t{slot} * consumers + i] += audience >> i & 1;
  }
}

void ArenaWriter::State::CountUsed(int64_t change) {
  used = static_cast<uint64_t>(static_cast<int64_t>(used) + change);
  arena::ArenaHeader& header = region->header();
  header.used.store(used, std::memory_order_relaxed);
  if (used > header.high_water.load(std::memory_order_relaxed)) {
    header.high_water.store(used, std::memory_order_relaxed);
  }
}

}  // namespace haulway
