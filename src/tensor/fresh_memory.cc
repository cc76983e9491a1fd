#include "tensor/fresh_memory.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <utility>

#include "base/checked.h"
#include "haulway/limits.h"

namespace haulway {

namespace {

constexpr uint64_t kPageBytes = 4 * kKiB;
constexpr uint64_t kUnitBytes = FreshMemory::kUnitBytes;
// Of the time of all units, what trials of huge pages may waste.
constexpr uint64_t kWasteShare = 8;

class Pages {
 public:
  Pages(void* address, size_t bytes) : address_(address), bytes_(bytes) {}
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  ~Pages() { ::munmap(address_, bytes_); }

 private:
  void* address_;
  size_t bytes_;
};

// Zeroed memory without any advice, aligned to a unit if it is as large as one.
Result<Buffer> Map(uint64_t bytes) {
  if (bytes == 0) return Buffer(nullptr, {}, true);
  uint64_t mapped = 0;
  if (!CheckedAdd(bytes, kUnitBytes, &mapped)) {
    return Status(Code::kLimit, fmt::format("cannot allocate {} bytes", bytes));
  }
  // Small allocations need no huge page; large ones get room to align to one.
  if (bytes < kUnitBytes) mapped = bytes;
  void* address = ::mmap(nullptr, mapped, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (address == MAP_FAILED) {
    return Status::FromErrno(errno,
                             fmt::format("cannot allocate {} bytes", bytes));
  }
  auto owner = std::make_shared<const Pages>(address, mapped);
  auto* start = static_cast<std::byte*>(address);
  if (bytes >= kUnitBytes) {
    const auto number = reinterpret_cast<uintptr_t>(address);
    start += (kUnitBytes - number % kUnitBytes) % kUnitBytes;
  }
  return Buffer(std::move(owner), {start, bytes}, true);
}

// Advice only: without huge pages everything works.
void Advise(std::span<std::byte> memory, PageKind kind) {
  (void)::madvise(memory.data(), memory.size(),
                  kind == PageKind::kHuge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
}

// Faults the pages in, for writing. The memory may be in use by others.
void Populate(std::span<std::byte> memory) {
#ifdef MADV_POPULATE_WRITE
  if (::madvise(memory.data(), memory.size(), MADV_POPULATE_WRITE) == 0) return;
  if (errno != EINVAL) return;
#endif
  // Linux before 5.14 has no call for it.
  for (size_t at = 0; at < memory.size(); at += kPageBytes) {
    __atomic_fetch_or(reinterpret_cast<uint8_t*>(memory.data() + at),
                      uint8_t{0}, __ATOMIC_RELAXED);
  }
}

}  // namespace

PageKind PageChooser::Next() {
  const std::lock_guard lock(mutex_);
  const auto seen = [&](PageKind kind) {
    return costs_[Row(kind)].units + under_way_[Row(kind)];
  };
  PageKind kind = takes_huge_ ? PageKind::kHuge : PageKind::kSmall;
  if (seen(PageKind::kHuge) == 0) {
    kind = PageKind::kHuge;
  } else if (seen(PageKind::kSmall) == 0) {
    kind = PageKind::kSmall;
  } else if (!takes_huge_ && under_way_[Row(PageKind::kHuge)] == 0) {
    const uint64_t spent = costs_[Row(PageKind::kHuge)].nanoseconds +
                           costs_[Row(PageKind::kSmall)].nanoseconds;
    if (wasted_ + last_huge_ <= spent / kWasteShare) kind = PageKind::kHuge;
  }
  ++under_way_[Row(kind)];
  return kind;
}

void PageChooser::Took(PageKind kind, uint64_t nanoseconds) {
  const std::lock_guard lock(mutex_);
  Cost& cost = costs_[Row(kind)];
  ++cost.units;
  cost.nanoseconds += nanoseconds;
  --under_way_[Row(kind)];
  if (kind == PageKind::kHuge) last_huge_ = nanoseconds;
  const Cost& small = costs_[Row(PageKind::kSmall)];
  if (small.units == 0 || costs_[Row(PageKind::kHuge)].units == 0) return;
  // What a small unit may be expected to take; the last huge one tells of the
  // next, since those that a host has to give come in runs.
  const uint64_t expected = small.nanoseconds / small.units;
  takes_huge_ = last_huge_ <= expected;
  if (kind == PageKind::kHuge && !takes_huge_) {
    wasted_ += nanoseconds - expected;
  }
}

PageChooser::Cost PageChooser::cost(PageKind kind) const {
  const std::lock_guard lock(mutex_);
  return costs_[Row(kind)];
}

struct FreshMemory::Units {
  explicit Units(uint64_t count)
      : taken(std::make_unique<std::atomic<bool>[]>(count)) {}

  PageChooser chooser;
  std::unique_ptr<std::atomic<bool>[]> taken;
};

Result<FreshMemory> FreshMemory::Allocate(uint64_t bytes) {
  FreshMemory memory;
  HAULWAY_ASSIGN(memory.buffer_, Map(bytes));
  if (bytes < kSmallestChosen) {
    if (bytes >= kUnitBytes) {
      Advise(memory.buffer_.mutable_bytes(), PageKind::kHuge);
    }
    return memory;
  }
  memory.units_ =
      std::make_shared<Units>((bytes + kUnitBytes - 1) / kUnitBytes);
  return memory;
}

void FreshMemory::BringIn(std::span<const std::byte> part) {
  if (units_ == nullptr || part.empty()) return;
  const auto offset = static_cast<uint64_t>(part.data() - buffer_.data());
  for (uint64_t unit = offset / kUnitBytes;
       unit <= (offset + part.size() - 1) / kUnitBytes; ++unit) {
    std::atomic<bool>& taken = units_->taken[unit];
    if (taken.load(std::memory_order_relaxed) ||
        taken.exchange(true, std::memory_order_relaxed)) {
      continue;
    }
    BringInUnit(unit);
  }
}

void FreshMemory::BringInUnit(uint64_t unit) {
  const auto start = std::chrono::steady_clock::now();
  const PageKind kind = units_->chooser.Next();
  const auto rest = buffer_.mutable_bytes().subspan(unit * kUnitBytes);
  const auto bytes = rest.first(std::min<size_t>(rest.size(), kUnitBytes));
  Advise(bytes, kind);
  Populate(bytes);
  const auto took = std::chrono::duration_cast<std::chrono::nanoseconds>(
      std::chrono::steady_clock::now() - start);
  // The last unit may be shorter.
  units_->chooser.Took(
      kind, static_cast<uint64_t>(took.count()) * kUnitBytes / bytes.size());
}

void FreshMemory::AdviseRest() {
  if (units_ == nullptr) return;
  const auto all = buffer_.mutable_bytes();
  BringIn(all.first(2 * kUnitBytes));
  Advise(all.subspan(2 * kUnitBytes), units_->chooser.Next());
}

Result<Buffer> AllocateBuffer(uint64_t bytes) {
  HAULWAY_ASSIGN(FreshMemory memory, FreshMemory::Allocate(bytes));
  memory.AdviseRest();
  return memory.buffer();
}

std::string FreshMemory::Describe() const {
  if (units_ == nullptr) return {};
  const PageChooser::Cost huge = units_->chooser.cost(PageKind::kHuge);
  const PageChooser::Cost small = units_->chooser.cost(PageKind::kSmall);
  const auto took = [](const PageChooser::Cost& cost) {
    return cost.units == 0
               ? std::string("-")
               : fmt::format("{:.2f} ms",
                             static_cast<double>(cost.nanoseconds) / 1e6 /
                                 static_cast<double>(cost.units));
  };
  return fmt::format(
      "{} of {} units of 2 MiB in huge pages; one took {} so, {} in small "
      "pages",
      huge.units, huge.units + small.units, took(huge), took(small));
}

}  // namespace haulway
