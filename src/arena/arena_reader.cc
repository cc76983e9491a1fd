#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <utility>

#include "arena/region.h"
#include "haulway/arena.h"

namespace haulway {

namespace {

// A Lease is a consumer's hold on a unit. fork() leaves a copy of the Lease in
// the child, which must not release the unit a second time.
class Lease {
 public:
  Lease(std::shared_ptr<arena::Region> region, UnitRef unit, uint32_t consumer,
        uint64_t bytes)
      : region_(std::move(region)),
        unit_(unit),
        consumer_(consumer),
        bytes_(bytes),
        owner_(::getpid()) {}
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;
  ~Lease() {
    if (::getpid() == owner_) region_->Release(unit_, consumer_, bytes_);
  }

 private:
  std::shared_ptr<arena::Region> region_;
  UnitRef unit_;
  uint32_t consumer_;
  uint64_t bytes_;
  pid_t owner_;
};

}  // namespace

ArenaReader::ArenaReader(std::shared_ptr<arena::Region> region,
                         uint32_t consumer)
    : region_(std::move(region)), consumer_(consumer) {}
ArenaReader::~ArenaReader() = default;

Result<std::shared_ptr<const void>> ArenaReader::Claim(UnitRef unit) {
  if (unit.slot >= region_->facts().slot_count) {
    return Status(Code::kCorrupt,
                  fmt::format("unit in slot {}: the arena has {}", unit.slot,
                              region_->facts().slot_count));
  }
  const arena::CommittedUnit& committed = region_->committed(unit.slot);
  const uint64_t generation =
      committed.generation.load(std::memory_order_acquire);
  if (unit.generation == 0 || generation != unit.generation) {
    return Status(
        Code::kCorrupt,
        fmt::format("unit of generation {} in slot {}: expected, found {}",
                    unit.generation, unit.slot, generation));
  }
  const uint64_t bytes = committed.bytes.load(std::memory_order_relaxed);
  return std::shared_ptr<const void>(
      std::make_shared<const Lease>(region_, unit, consumer_, bytes));
}

Result<UnitRef> ArenaReader::Next() {
  const std::atomic_ref<uint64_t> next(next_);
  uint64_t number = next.load(std::memory_order_relaxed);
  while (true) {
    const uint64_t committed =
        region_->header().committed_units.load(std::memory_order_acquire);
    if (number >= committed) {
      return Status(Code::kUnavailable, "no further unit is committed");
    }
    const uint32_t slot =
        region_->order(number).load(std::memory_order_acquire);
    if (slot >= region_->facts().slot_count) {
      return Status(Code::kCorrupt, "order of units names no slot");
    }
    const uint64_t generation =
        region_->committed(slot).generation.load(std::memory_order_acquire);
    // Else another thread has taken this one, and says which is next.
    if (next.compare_exchange_weak(number, number + 1,
                                   std::memory_order_relaxed)) {
      return UnitRef{slot, static_cast<uint32_t>(generation)};
    }
  }
}

Result<Buffer> ArenaReader::View(const std::shared_ptr<const void>& claim,
                                 uint64_t offset, uint64_t bytes,
                                 bool writable) const {
  if (region_->IsBeyond(offset)) {
    HAULWAY_ASSIGN(auto mapped, region_->MapBeyond(offset, bytes));
    const uint64_t start = mapped->offset() - region_->facts().payload_offset;
    const std::span<std::byte> view(mapped->data() + (offset - start), bytes);
    // Keeps the range mapped.
    using Hold = std::pair<std::shared_ptr<arena::MappedRange>,
                           std::shared_ptr<const void>>;
    return Buffer(std::make_shared<const Hold>(std::move(mapped), claim), view,
                  writable);
  }
  if (!region_->Holds(offset, bytes)) {
    return Status(Code::kCorrupt,
                  fmt::format("{} bytes at {} are not within an arena of {}",
                              bytes, offset, region_->facts().payload_bytes));
  }
  return Buffer(claim, std::span<std::byte>(region_->payload() + offset, bytes),
                writable);
}

}  // namespace haulway
