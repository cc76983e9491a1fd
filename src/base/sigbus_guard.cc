#include "base/sigbus_guard.h"

#include <sys/mman.h>
#include <sys/stat.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>

#include "base/page_bytes.h"

namespace haulway {

namespace {

// A mapping that the handler can find without a lock. `end` is 0 while the slot
// is empty or being changed. There is no mutex, because a thread could hold it
// while another one forks, and the child would wait for it forever.
struct Slot {
  std::atomic<uintptr_t> begin{0};  // 0: free. Setting it takes the slot.
  std::atomic<uintptr_t> end{0};
  std::atomic<int> fd{-1};
  std::atomic<bool> cut{false};
};

// A handler can reach only global variables. Mappings beyond this number are
// not guarded.
constexpr size_t kSlots = 4096;
std::array<Slot, kSlots> slots;
std::atomic<size_t> used_slots{0};  // No slot from here on was ever used.

// initial-exec: the handler may not allocate, which a first access might do
// otherwise.
[[gnu::tls_model("initial-exec")]] thread_local GuardedSection* section =
    nullptr;

struct sigaction earlier_bus;  // Written once, before the handler can run.

Slot* Find(uintptr_t address) {
  const size_t used = used_slots.load(std::memory_order_acquire);
  for (size_t i = 0; i < used; ++i) {
    Slot& slot = slots[i];
    const uintptr_t end = slot.end.load(std::memory_order_acquire);
    const uintptr_t begin = slot.begin.load(std::memory_order_acquire);
    if (address >= begin && address < end &&
        slot.end.load(std::memory_order_acquire) == end) {
      return &slot;
    }
  }
  return nullptr;
}

// Replaces missing pages with zeros. Returns false on failure.
bool Replace(Slot* slot, uintptr_t page) {
  const uintptr_t page_bytes = PageBytes();
  uintptr_t end = page + page_bytes;
  const uintptr_t begin = slot->begin.load(std::memory_order_relaxed);
  struct stat facts;
  if (::fstat(slot->fd.load(std::memory_order_relaxed), &facts) == 0 &&
      page - begin >= static_cast<uint64_t>(facts.st_size)) {
    // The file was truncated, so all following pages are missing too.
    end = (slot->end.load(std::memory_order_relaxed) + page_bytes - 1) &
          ~(page_bytes - 1);
  }
  return ::mmap(reinterpret_cast<void*>(page), end - page,
                PROT_READ | PROT_WRITE,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1,
                0) != MAP_FAILED;
}

void OnSigbus(int signal, siginfo_t* info, void* context) {
  const int error = errno;
  if (section != nullptr && info->si_code == BUS_ADRERR) {
    const uintptr_t page =
        reinterpret_cast<uintptr_t>(info->si_addr) & ~(PageBytes() - 1);
    Slot* const slot = Find(page);
    if (slot != nullptr && Replace(slot, page)) {
      slot->cut.store(true, std::memory_order_release);
      section->Lose(page - slot->begin.load(std::memory_order_relaxed));
      errno = error;
      return;
    }
  }
  // Not a guarded access: do what would happen without the guard.
  if ((earlier_bus.sa_flags & SA_SIGINFO) != 0) {
    earlier_bus.sa_sigaction(signal, info, context);
  } else if (earlier_bus.sa_handler != SIG_DFL &&
             earlier_bus.sa_handler != SIG_IGN) {
    earlier_bus.sa_handler(signal);
  } else if (earlier_bus.sa_handler == SIG_DFL || info->si_code > 0) {
    // The access is repeated on return, or the signal is raised again, and ends
    // the process.
    ::signal(signal, SIG_DFL);
    if (info->si_code <= 0) ::raise(signal);
  }
  errno = error;
}

bool InstallGuard() {
  struct sigaction action {};
  action.sa_sigaction = OnSigbus;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  ::sigemptyset(&action.sa_mask);
  return ::sigaction(SIGBUS, nullptr, &earlier_bus) == 0 &&
         ::sigaction(SIGBUS, &action, nullptr) == 0;
}

}  // namespace

void CatchSigbus() {
  static const bool installed = InstallGuard();
  (void)installed;
}

GuardedMapping::GuardedMapping(std::span<const std::byte> bytes, int fd)
    : slot_(kSlots) {
  if (bytes.empty()) return;
  const auto begin = reinterpret_cast<uintptr_t>(bytes.data());
  const auto is_taken = [&](size_t i) {
    uintptr_t none = 0;
    return slots[i].begin.load() == 0 &&
           slots[i].begin.compare_exchange_strong(none, begin);
  };
  slot_ = 0;
  while (slot_ < kSlots && !is_taken(slot_)) ++slot_;
  if (slot_ == kSlots) return;
  Slot& slot = slots[slot_];
  slot.cut.store(false);
  slot.fd.store(fd);
  slot.end.store(begin + bytes.size());
  size_t used = used_slots.load();
  while (used <= slot_ && !used_slots.compare_exchange_weak(used, slot_ + 1)) {
  }
}

GuardedMapping::~GuardedMapping() {
  if (slot_ == kSlots) return;
  slots[slot_].end.store(0);
  slots[slot_].begin.store(0);
}

bool GuardedMapping::cut() const {
  return slot_ < kSlots && slots[slot_].cut.load(std::memory_order_acquire);
}

void GuardedMapping::ForgetFile() {
  if (slot_ < kSlots) slots[slot_].fd.store(-1);
}

GuardedSection::GuardedSection() : outer_(section) { section = this; }
GuardedSection::~GuardedSection() { section = outer_; }

Status GuardedSection::Check() const {
  if (!lost_) return Status();
  return Status(Code::kTruncated, "the file was cut while it was mapped")
      .At(offset_);
}

}  // namespace haulway
