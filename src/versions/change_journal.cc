#include "versions/change_journal.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <optional>
#include <string_view>
#include <utility>

#include "base/checked.h"

namespace haulway {

namespace {

constexpr std::string_view kMagic = "HWDELTA1";
constexpr uint64_t kMostSlots = 65536;
constexpr size_t kBootBytes = 40;

// Returns BootId() as a journal holds it.
std::array<char, kBootBytes> BootBytes() {
  std::array<char, kBootBytes> bytes{};
  const std::string id = BootId();
  std::ranges::copy(id.substr(0, kBootBytes - 1), bytes.begin());
  return bytes;
}

}  // namespace

std::string BootId() {
  std::string id(kBootBytes - 1, '\0');
  const UniqueFd fd(
      ::open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC));
  int bytes = 0;
  if (fd.get() >= 0) {
    bytes = RetryInterrupted([&] {
      return static_cast<int>(::read(fd.get(), id.data(), id.size()));
    });
  }
  id.resize(static_cast<size_t>(std::max(bytes, 0)));
  while (id.ends_with('\n')) id.pop_back();
  return id;
}

struct ChangeJournal::Head {
  std::array<char, 8> magic;
  std::array<char, kBootBytes> boot;
  uint64_t block_bytes;
  uint64_t tensors;
  uint64_t slots;
  uint64_t kept_bytes;
  uint64_t is_undo;

  // Returns the size of the file; nullopt if it is too large.
  std::optional<uint64_t> Size() const {
    uint64_t size = sizeof(Head);
    uint64_t part = 0;
    if (slots > kMostSlots ||
        !CheckedMultiply(tensors, sizeof(Tensor), &part) ||
        !CheckedAdd(size, part, &size) ||
        !CheckedAdd(size, slots * sizeof(Slot), &size) ||
        !CheckedAdd(size, kept_bytes, &size)) {
      return std::nullopt;
    }
    return size;
  }
};

ChangeJournal::ChangeJournal(std::byte* bytes, uint64_t size)
    : bytes_(bytes), size_(size) {}
ChangeJournal::ChangeJournal(ChangeJournal&& other) noexcept
    : bytes_(std::exchange(other.bytes_, nullptr)), size_(other.size_) {}
ChangeJournal::~ChangeJournal() {
  if (bytes_ != nullptr) ::munmap(bytes_, size_);
}

Result<ChangeJournal> ChangeJournal::Make(const std::string& path,
                                          std::span<const uint64_t> kept,
                                          uint32_t slots) {
  Head head{};
  std::ranges::copy(kMagic, head.magic.begin());
  head.boot = BootBytes();
  head.block_bytes = delta::ChangeReader::kBlockBytes;
  head.tensors = kept.size();
  head.slots = slots;
  for (const uint64_t bytes : kept) {
    if (!CheckedAdd(head.kept_bytes, bytes, &head.kept_bytes)) {
      return Status(Code::kLimit, "the version changes too many bytes");
    }
  }
  const auto size = head.Size();
  if (!size.has_value()) {
    return Status(Code::kLimit, "the version changes too many bytes");
  }
  const UniqueFd fd(
      ::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (fd.get() < 0) {
    return Status::FromErrno(errno, "cannot make the file").Of(path);
  }
  // A store to a page for which the disk has no space would end the process.
  const int error = ::posix_fallocate(fd.get(), 0, static_cast<off_t>(*size));
  if (error != 0) {
    return Status::FromErrno(error, "no space for the journal").Of(path);
  }
  void* const at =
      ::mmap(nullptr, *size, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (at == MAP_FAILED) {
    return Status::FromErrno(errno, "cannot map the file").Of(path);
  }
  ChangeJournal journal(static_cast<std::byte*>(at), *size);
  journal.head() = head;
  uint64_t begin = 0;
  for (size_t i = 0; i < kept.size(); ++i) {
    journal.tensor(i).kept = begin;
    begin += kept[i];
  }
  return journal;
}

Result<ChangeJournal> ChangeJournal::Open(const std::string& path,
                                          uint64_t tensors) {
  const UniqueFd fd(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (fd.get() < 0) return Status::FromErrno(errno, "cannot open").Of(path);
  HAULWAY_ASSIGN(const uint64_t size, RegularFileSize(fd.get(), path));
  Head head{};
  if (size >= sizeof(head)) {
    HAULWAY_TRY(
        ReadFully(fd.get(), 0, std::as_writable_bytes(std::span(&head, 1))));
  }
  if (!std::ranges::equal(head.magic, kMagic) ||
      head.block_bytes != delta::ChangeReader::kBlockBytes) {
    return Status(Code::kMismatch, "another release of Haulway began it");
  }
  if (head.boot != BootBytes()) {
    return Status(Code::kMismatch, "the machine was started since");
  }
  if (head.tensors != tensors || head.slots == 0 || head.Size() != size) {
    return Status(Code::kCorrupt, "the journal is damaged").Of(path);
  }
  void* const at =
      ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (at == MAP_FAILED) {
    return Status::FromErrno(errno, "cannot map the file").Of(path);
  }
  ChangeJournal journal(static_cast<std::byte*>(at), size);
  for (uint64_t i = 0; i < tensors; ++i) {
    if (journal.tensor(i).kept <= head.kept_bytes) continue;
    return Status(Code::kCorrupt, "the journal is damaged").Of(path);
  }
  return journal;
}

ChangeJournal::Head& ChangeJournal::head() const {
  return *reinterpret_cast<Head*>(bytes_);
}

bool ChangeJournal::is_undo() const { return head().is_undo != 0; }
void ChangeJournal::BeginUndo() { Store(&head().is_undo, 1); }
uint32_t ChangeJournal::slots() const {
  return static_cast<uint32_t>(head().slots);
}

ChangeJournal::Tensor& ChangeJournal::tensor(uint64_t row) {
  return reinterpret_cast<Tensor*>(bytes_ + sizeof(Head))[row];
}

ChangeJournal::Slot& ChangeJournal::slot(uint32_t row) {
  return reinterpret_cast<Slot*>(bytes_ + sizeof(Head) +
                                 head().tensors * sizeof(Tensor))[row];
}

std::span<std::byte> ChangeJournal::kept(uint64_t row) {
  const uint64_t begin = tensor(row).kept;
  return {bytes_ + size_ - head().kept_bytes + begin,
          head().kept_bytes - begin};
}

}  // namespace haulway
