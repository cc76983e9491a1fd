#include "arena/region.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/checked.h"
#include "base/page_bytes.h"
#include "base/posix.h"

namespace haulway::arena {

namespace {

// Mappings of overflows that are kept for later units.
constexpr size_t kMostMapped = 8;

Status Bad(std::string_view what) {
  return Status(Code::kCorrupt, what).In("arena header");
}

bool KnownKind(uint16_t kind) {
  return kind == static_cast<uint32_t>(ArenaKind::kVariable) ||
         kind == static_cast<uint32_t>(ArenaKind::kPool) ||
         kind == static_cast<uint32_t>(ArenaKind::kRing);
}

ShmSegment::Options MapOptions(const ArenaFacts& facts) {
  ShmSegment::Options options;
  if (facts.kind == static_cast<uint32_t>(ArenaKind::kRing)) {
    options.mirror_from = facts.payload_offset;
  }
  return options;
}

// Computes the sizes. Returns false on overflow.
bool LayOut(uint64_t wanted_bytes, ArenaFacts* facts) {
  const uint64_t page = PageBytes();
  return CheckedRoundUp(
             kHeaderBytes + SlotBytes(facts->consumers) * facts->slot_count,
             page, &facts->payload_offset) &&
         CheckedRoundUp(wanted_bytes, page, &facts->payload_bytes) &&
         CheckedAdd(facts->payload_offset, facts->payload_bytes,
                    &facts->total_bytes);
}

}  // namespace

Status CheckFacts(const ArenaFacts& facts) {
  if (facts.magic != kArenaMagic) return Bad("not an arena");
  if (facts.version != kArenaVersion) {
    return Status(Code::kUnsupported,
                  fmt::format("arena of version {}: expected {}", facts.version,
                              kArenaVersion));
  }
  uint64_t payload_end = 0;
  if (!KnownKind(facts.kind) || facts.slot_count == 0 ||
      facts.slot_count > kMostUnits || facts.consumers == 0 ||
      facts.consumers > kMostConsumers ||
      facts.payload_offset <
          kHeaderBytes + SlotBytes(facts.consumers) * facts.slot_count ||
      facts.payload_offset % PageBytes() != 0 ||
      facts.total_bytes % PageBytes() != 0 || facts.payload_bytes == 0 ||
      facts.capacity == 0 || facts.capacity > facts.payload_bytes ||
      facts.unit_bytes > facts.capacity ||
      !CheckedAdd(facts.payload_offset, facts.payload_bytes, &payload_end) ||
      payload_end != facts.total_bytes) {
    return Bad("sizes that contradict one another");
  }
  if (facts.kind == static_cast<uint32_t>(ArenaKind::kPool)) {
    uint64_t segments = 0;
    if (facts.unit_bytes == 0 ||
        !CheckedMultiply(facts.unit_bytes, facts.slot_count, &segments) ||
        segments > facts.capacity) {
      return Bad("segments that do not fit");
    }
  }
  return Status();
}

Result<ArenaFacts> ReadFacts(int fd) {
  ArenaFacts facts;
  HAULWAY_TRY(ReadFully(
      fd, 0, std::as_writable_bytes(std::span<ArenaFacts>(&facts, 1))));
  HAULWAY_TRY(CheckFacts(facts));
  return facts;
}

ArenaStats MakeStats(const ArenaFacts& facts, const ArenaHeader& header) {
  constexpr auto kRelaxed = std::memory_order_relaxed;
  ArenaStats stats;
  stats.kind = static_cast<ArenaKind>(facts.kind);
  stats.consumers = facts.consumers;
  stats.creator = facts.creator;
  stats.producer = header.producer.load(kRelaxed);
  stats.bytes = facts.capacity;
  stats.used = header.used.load(kRelaxed);
  stats.high_water = header.high_water.load(kRelaxed);
  stats.units = header.committed_units.load(kRelaxed);
  stats.waits = header.waits.load(kRelaxed);
  stats.fallbacks = header.fallbacks.load(kRelaxed);
  stats.overflows = header.overflows.load(kRelaxed);
  stats.committed_bytes = header.committed_bytes.load(kRelaxed);
  stats.released_bytes = header.released_bytes.load(kRelaxed);
  stats.releases = header.releases.load(kRelaxed);
  return stats;
}

Result<std::shared_ptr<Region>> Region::Create(const ArenaOptions& options) {
  ArenaFacts facts = {};
  facts.magic = kArenaMagic;
  facts.version = kArenaVersion;
  facts.kind = static_cast<uint16_t>(options.kind);
  facts.consumers = static_cast<uint16_t>(options.consumers);
  facts.slot_count = options.max_units;
  facts.creator = static_cast<uint32_t>(::getpid());
  facts.capacity = options.max_bytes;
  if (options.kind == ArenaKind::kPool) {
    if (!CheckedRoundUp(options.unit_bytes, kAlignment, &facts.unit_bytes) ||
        !CheckedMultiply(facts.unit_bytes, options.max_units,
                         &facts.capacity)) {
      return Status(Code::kLimit, "arena too large");
    }
  }
  if (facts.capacity == 0) {
    return Status(Code::kInvalidArgument, "an arena needs at least one byte");
  }
  if (options.kind == ArenaKind::kVariable &&
      !CheckedRoundUp(facts.capacity, kAlignment, &facts.capacity)) {
    return Status(Code::kLimit, "arena too large");
  }
  if (facts.slot_count == 0 || facts.slot_count > kMostUnits) {
    return Status(Code::kInvalidArgument,
                  fmt::format("an arena holds 1 to {} units: found {}",
                              kMostUnits, facts.slot_count));
  }
  if (options.consumers == 0 || options.consumers > kMostConsumers) {
    return Status(Code::kInvalidArgument,
                  fmt::format("an arena has 1 to {} consumers: found {}",
                              kMostConsumers, options.consumers));
  }
  if (!LayOut(facts.capacity, &facts)) {
    return Status(Code::kLimit, "arena too large");
  }
  ShmSegment::Options map = MapOptions(facts);
  map.may_grow = true;
  map.huge_pages = options.huge_pages;
  map.prefault = options.prefault;
  HAULWAY_ASSIGN(auto segment,
                 ShmSegment::Create(kArenaLabel, facts.total_bytes, map));
  // The other fields are zero, as the kernel provides them.
  std::memcpy(segment->data(), &facts, sizeof(facts));
  const std::shared_ptr<Region> region(new Region(facts, std::move(segment)));
  region->header().overflow_limit.store(
      options.kind == ArenaKind::kRing ? 0 : options.overflow_bytes,
      std::memory_order_release);
  return region;
}

Result<std::shared_ptr<Region>> Region::Attach(UniqueFd fd) {
  HAULWAY_ASSIGN(const ArenaFacts facts, ReadFacts(fd.get()));
  HAULWAY_ASSIGN(
      auto segment,
      ShmSegment::Attach(std::move(fd), facts.total_bytes, MapOptions(facts)));
  return std::shared_ptr<Region>(new Region(facts, std::move(segment)));
}

Region::Region(const ArenaFacts& facts, std::shared_ptr<ShmSegment> segment)
    : facts_(facts), segment_(std::move(segment)) {
  std::byte* at = segment_->data();
  header_ = reinterpret_cast<ArenaHeader*>(at);
  at += kHeaderBytes;
  committed_ = reinterpret_cast<CommittedUnit*>(at);
  at += sizeof(CommittedUnit) * facts_.slot_count;
  released_ = reinterpret_cast<ReleasedUnit*>(at);
  at += sizeof(ReleasedUnit) * facts_.consumers * facts_.slot_count;
  order_ = reinterpret_cast<OrderEntry*>(at);
  payload_ = segment_->data() + facts_.payload_offset;
}

bool Region::Holds(uint64_t offset, uint64_t bytes) const {
  if (facts_.kind == static_cast<uint32_t>(ArenaKind::kRing)) {
    return offset < facts_.payload_bytes && bytes <= facts_.capacity;
  }
  return RangeFits(offset, bytes, facts_.payload_bytes);
}

bool Region::IsBeyond(uint64_t offset) const {
  return facts_.kind != static_cast<uint32_t>(ArenaKind::kRing) &&
         offset >= facts_.payload_bytes;
}

Result<std::shared_ptr<MappedRange>> Region::MapBeyond(uint64_t offset,
                                                       uint64_t bytes) const {
  const uint64_t page = PageBytes();
  uint64_t start = 0;
  uint64_t end = 0;
  struct stat file;
  if (::fstat(fd(), &file) != 0) {
    return Status::FromErrno(errno, "cannot stat shared memory");
  }
  if (bytes == 0 || !CheckedAdd(offset, facts_.payload_offset, &start) ||
      !CheckedAdd(start, bytes, &end) || !CheckedRoundUp(end, page, &end) ||
      end > static_cast<uint64_t>(file.st_size)) {
    return Status(
        Code::kCorrupt,
        fmt::format("{} bytes at {} are beyond the end of the arena's file",
                    bytes, offset));
  }
  start -= start % page;
  const std::lock_guard lock(mapped_mutex_);
  for (const auto& mapped : mapped_) {
    if (mapped->offset() == start && mapped->size() == end - start) {
      return mapped;
    }
  }
  HAULWAY_ASSIGN(auto mapped, MappedRange::Map(fd(), start, end - start));
  mapped_.push_back(mapped);
  if (mapped_.size() > kMostMapped) mapped_.pop_front();
  return mapped;
}

void Region::Release(UnitRef unit, uint32_t consumer, uint64_t bytes) const {
  ReleasedUnit& word = released(unit.slot, consumer);
  uint64_t seen = word.load(std::memory_order_relaxed);
  do {
    if (seen >> 32 != unit.generation) return;
  } while (
      !word.compare_exchange_weak(seen, seen + 1, std::memory_order_acq_rel));
  header_->released_bytes.fetch_add(bytes, std::memory_order_relaxed);
  header_->releases.fetch_add(1, std::memory_order_seq_cst);
  header_->released.Ring();
}

}  // namespace haulway::arena
