// How far the changes of a version have come, in a mapped file.

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/posix.h"
#include "delta/change_reader.h"
#include "haulway/status.h"

namespace haulway {

// Returns what names this start of the machine.
std::string BootId();

// A ChangeJournal is what the next process needs if this one is killed at any
// instruction: the kernel keeps what was stored in the mapping.
//
// A block of a tensor is changed in a slot of the journal, and then written to
// the target. A slot says whether it is to be written; writing it twice does no
// harm. After that, the number of changed bytes of the tensor is stored. While
// changes are undone, the number of bytes that are undone is stored likewise.
//
// What was stored is lost if the machine stops. So a journal of another start
// of the machine is not used.
//
// Threads: one thread uses a slot, and the tensor that it changes, at a time.
class ChangeJournal {
 public:
  struct Tensor {
    uint64_t done;    // Bytes that were changed.
    uint64_t undone;  // Bytes of those that were changed back.
    uint64_t ended;   // 1 when the checksum was compared.
    uint64_t kept;    // Where its old bytes begin in kept().
  };
  // A block that is changed. Stored as it is in the file.
  struct Slot {
    uint64_t is_full;  // 1 while the block is to be written.
    uint64_t tensor;
    uint64_t offset;  // Within the tensor.
    uint64_t bytes;
    uint64_t is_undo;
    std::byte block[delta::ChangeReader::kBlockBytes];
  };

  // Makes a journal. `kept`: how many old bytes each tensor keeps.
  static Result<ChangeJournal> Make(const std::string& path,
                                    std::span<const uint64_t> kept,
                                    uint32_t slots);
  // Opens the journal of a process that was killed. Fails with kMismatch if the
  // machine was started since, or another release of Haulway wrote it, and with
  // kCorrupt if it has another number of tensors.
  static Result<ChangeJournal> Open(const std::string& path, uint64_t tensors);
  ChangeJournal(ChangeJournal&&) noexcept;
  ~ChangeJournal();

  // Whether the changes are undone.
  bool is_undo() const;
  void BeginUndo();

  uint32_t slots() const;
  Slot& slot(uint32_t row);
  Tensor& tensor(uint64_t row);
  // Returns the memory for the old bytes of a tensor, and of those after it.
  std::span<std::byte> kept(uint64_t row);

  // Stores a number after all that was stored before.
  static void Store(uint64_t* at, uint64_t value) {
    std::atomic_ref<uint64_t>(*at).store(value, std::memory_order_release);
    // Nothing that follows in the program may be stored before.
    std::atomic_signal_fence(std::memory_order_seq_cst);
  }

 private:
  struct Head;
  ChangeJournal(std::byte* bytes, uint64_t size);
  Head& head() const;

  std::byte* bytes_ = nullptr;
  uint64_t size_ = 0;
};

}  // namespace haulway
