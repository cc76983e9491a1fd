// Design: small allocations come from the heap. Larger ones are mappings whose
// units of 2 MiB are populated one at a time, each by the thread that is about
// to write there. PageChooser chooses the page size from the measured times.
// Where possible, advice is given to the kernel for all units at once, because
// advice per unit makes other threads wait.
//
// Freed memory is kept for the next load only by a MemoryPool (load.h), if the
// caller has one.

#include "base/fresh_memory.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>

#include "base/checked.h"
#include "base/page_bytes.h"
#include "haulway/options.h"

namespace haulway {

namespace {

constexpr uint64_t kUnitBytes = FreshMemory::kUnitBytes;
// Smaller allocations come from the heap.
constexpr uint64_t kSmallestMapped = 32 * kKiB;
// After this many units in a row that differ from the advice for all units,
// that advice changes.
constexpr int kAgainst = 4;

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

Status CannotAllocate(uint64_t bytes) {
  return Status(Code::kLimit, fmt::format("cannot allocate {} bytes", bytes));
}

// Allocates zeroed memory on the heap, page-aligned if it is at least a page. A
// mapping takes two system calls and a page fault, about 4 us, and a small file
// has many records.
Result<Buffer> TakeFromHeap(uint64_t bytes) {
  const size_t alignment = bytes < kPageBytes ? 64 : kPageBytes;
  const size_t size = (bytes + alignment - 1) / alignment * alignment;
  auto* const start =
      static_cast<std::byte*>(std::aligned_alloc(alignment, size));
  if (start == nullptr) return CannotAllocate(bytes);
  std::memset(start, 0, size);
  return Buffer(std::shared_ptr<std::byte>(start, std::free), {start, bytes},
                true);
}

// Allocates zeroed memory without advice, aligned to a unit if it is at least a
// unit.
Result<Buffer> Map(uint64_t bytes) {
  if (bytes == 0) return Buffer(nullptr, {}, true);
  if (bytes < kSmallestMapped) return TakeFromHeap(bytes);
  uint64_t mapped = 0;
  if (!CheckedAdd(bytes, kUnitBytes, &mapped)) return CannotAllocate(bytes);
  // Only allocations of a unit or more are aligned to huge pages.
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

// Gives advice only: without huge pages everything works.
void Advise(std::span<std::byte> memory, PageKind kind) {
  (void)::madvise(memory.data(), memory.size(),
                  kind == PageKind::kHuge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
}

// Populates the pages for writing. Other threads may use the memory meanwhile.
void Populate(std::span<std::byte> memory) {
#ifdef MADV_POPULATE_WRITE
  if (::madvise(memory.data(), memory.size(), MADV_POPULATE_WRITE) == 0) return;
  if (errno != EINVAL) return;
#endif
  // Linux before 5.14 has no such call.
  for (size_t at = 0; at < memory.size(); at += kPageBytes) {
    __atomic_fetch_or(reinterpret_cast<uint8_t*>(memory.data() + at),
                      uint8_t{0}, __ATOMIC_RELAXED);
  }
}

}  // namespace

struct FreshMemory::Units {
  explicit Units(uint64_t count)
      : taken(std::make_unique<std::atomic<bool>[]>(count)) {}

  PageChooser chooser;
  std::unique_ptr<std::atomic<bool>[]> taken;
  // The advice that was given for all units, and the number of units in a row
  // that differ.
  std::atomic<PageKind> advice = PageKind::kSmall;
  std::atomic<int> against = 0;
};

Result<FreshMemory> FreshMemory::Allocate(uint64_t bytes) {
  FreshMemory memory;
  HAULWAY_ASSIGN(memory.buffer_, Map(bytes));
  // Small pages by default: a huge page that the host must supply first would
  // take as long as the whole allocation in small pages.
  if (bytes >= kUnitBytes) {
    Advise(memory.buffer_.mutable_bytes(), PageKind::kSmall);
  }
  if (bytes < kSmallestChosen) return memory;
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

// Gives advice for one unit, or changes the advice for all units. Most units
// need no call: the kernel takes advice only while no thread populates memory,
// so advice for each unit would serialize the threads.
void FreshMemory::AdviseUnit(std::span<std::byte> unit, PageKind kind) {
  if (units_->advice.load(std::memory_order_relaxed) == kind) {
    units_->against.store(0, std::memory_order_relaxed);
  } else if (units_->against.fetch_add(1, std::memory_order_relaxed) + 1 <
             kAgainst) {
    Advise(unit, kind);
  } else {
    // A unit that another thread is populating may then get this kind, too.
    units_->against.store(0, std::memory_order_relaxed);
    units_->advice.store(kind, std::memory_order_relaxed);
    Advise(buffer_.mutable_bytes(), kind);
  }
}

void FreshMemory::BringInUnit(uint64_t unit) {
  const PageKind kind = units_->chooser.Next();
  const auto rest = buffer_.mutable_bytes().subspan(unit * kUnitBytes);
  const auto bytes = rest.first(std::min<size_t>(rest.size(), kUnitBytes));
  AdviseUnit(bytes, kind);
  // The last unit may be shorter.
  const PageTimer timer(&units_->chooser, kind, bytes.size(), kUnitBytes);
  Populate(bytes);
}

void FreshMemory::AdviseRest() {
  if (units_ == nullptr) return;
  const auto all = buffer_.mutable_bytes();
  BringIn(all.first(2 * kUnitBytes));
  Advise(all.subspan(2 * kUnitBytes), units_->chooser.kinder());
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
