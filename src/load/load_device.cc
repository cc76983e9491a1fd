#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/checked.h"
#include "base/no_memory.h"
#include "haulway/buffer.h"
#include "haulway/load.h"
#include "haulway/machine.h"
#include "haulway/options.h"

namespace haulway {

namespace {

constexpr uint64_t kDeviceAlignment = 256;  // The alignment of cuMemAlloc().
// Size of one copy: large enough to hide the cost of starting it, small enough
// that the ring holds several.
constexpr uint64_t kPieceBytes = kMiB;
// Slots of the ring that the device may be reading. At least one more slot must
// remain for file reads, or the two sides would wait for each other.
constexpr size_t kMostCopied = 8;
// A slot has spare room for alignment.
constexpr uint64_t kSlotBytes = kPieceBytes + 64 * kKiB;
// More pinned memory does not speed up loading, and takes longer to allocate.
constexpr uint64_t kMostPinned = 32 * kMiB;
// Threads that only copy out of the page cache. More compete with the device
// for the memory: with an H200 and 16 processors, 2 GiB take 75 ms with 8
// threads, 85 with 10, 105 with 12 or 16, and 130 with 4.
//
// Tried instead: no copy at all, by registering a mapping of the file with the
// driver. Registering 2 GiB takes 110 ms on one thread and on eight.
constexpr int kCopyingThreads = 8;

Status CheckSizes(const Checkpoint& checkpoint, std::span<const uint32_t> rows,
                  std::span<const DeviceBuffer> targets) {
  const auto& storages = checkpoint.index().storages;
  if (targets.size() != rows.size()) {
    return Status(
        Code::kInvalidArgument,
        fmt::format("{} targets: expected {}", targets.size(), rows.size()));
  }
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i] >= storages.size()) {
      return Status(Code::kInvalidArgument,
                    fmt::format("no storage {}: expected below {}", rows[i],
                                storages.size()));
    }
    if (targets[i].size != storages[rows[i]].nbytes) {
      return Status(Code::kInvalidArgument,
                    fmt::format("target of {} bytes: expected {}",
                                targets[i].size, storages[rows[i]].nbytes));
    }
  }
  return Status();
}

// Returns whether threads only copy: nothing is decoded or digested.
bool OnlyCopies(const Checkpoint& checkpoint, std::span<const uint32_t> rows,
                const LoadOptions& options) {
  return !options.verify && checkpoint.source().Look({}).local_file &&
         std::ranges::all_of(rows, [&](uint32_t row) {
           return checkpoint.index().storages[row].encoding == Encoding::kRaw;
         });
}

Result<LoadStats> LoadInto(const Checkpoint& checkpoint,
                           std::span<const uint32_t> rows,
                           std::span<const DeviceBuffer> targets,
                           const CudaDevice& device,
                           const LoadOptions& options) {
  HAULWAY_TRY(CheckSizes(checkpoint, rows, targets));
  HAULWAY_ASSIGN(const std::unique_ptr<CudaDevice::Upload> upload,
                 device.StartUpload(kMostCopied));
  LoadOptions pieces = options;
  if (pieces.threads == 0 && OnlyCopies(checkpoint, rows, options)) {
    pieces.threads = std::min(UsableCpus(), kCopyingThreads);
  }
  // Twice, because half of the budget may go to storages that cannot be read in
  // pieces.
  pieces.memory_budget = std::max(std::min(options.memory_budget, kMostPinned),
                                  2 * (kMostCopied + 2) * kSlotBytes);
  pieces.allocate = [&](uint64_t bytes) -> Result<Buffer> {
    Result<Buffer> pinned = device.AllocatePinned(bytes);
    // Pageable memory works too, more slowly.
    if (!pinned.ok() && pinned.status().code() == Code::kLimit) {
      return AllocateBuffer(bytes);
    }
    return pinned;
  };
  HAULWAY_ASSIGN(
      LoadStats stats,
      LoadPieces(checkpoint, rows, pieces, kPieceBytes, [&](Piece piece) {
        return upload->Copy(targets[piece.position], piece.offset,
                            std::move(piece.bytes));
      }));
  HAULWAY_TRY(upload->Finish());
  return stats;
}

Result<DeviceStorages> Load(const Checkpoint& checkpoint,
                            std::span<const uint32_t> rows,
                            const CudaDevice& device,
                            const LoadOptions& options) {
  const auto& storages = checkpoint.index().storages;
  DeviceStorages loaded;
  uint64_t total = 0;
  for (const uint32_t row : rows) {
    if (row >= storages.size()) {
      return Status(Code::kInvalidArgument,
                    fmt::format("no storage {}: expected below {}", row,
                                storages.size()));
    }
    // `address` holds the offset until the memory is allocated.
    loaded.buffers.push_back(
        {nullptr, total, storages[row].nbytes, device.ordinal()});
    if (!CheckedAdd(total, storages[row].nbytes, &total) ||
        !CheckedRoundUp(total, kDeviceAlignment, &total)) {
      return Status(Code::kLimit, "storages of more than 2^64 bytes");
    }
  }
  HAULWAY_ASSIGN(const DeviceBuffer memory, device.Allocate(total));
  for (DeviceBuffer& buffer : loaded.buffers) {
    if (buffer.size == 0) {
      buffer.address = 0;
      continue;
    }
    buffer.owner = memory.owner;
    buffer.address += memory.address;
  }
  HAULWAY_ASSIGN(loaded.stats,
                 LoadInto(checkpoint, rows, loaded.buffers, device, options));
  return loaded;
}

}  // namespace

Result<DeviceStorages> LoadToDevice(const Checkpoint& checkpoint,
                                    std::span<const uint32_t> storages,
                                    const CudaDevice& device,
                                    const LoadOptions& options) {
  return OrNoMemory(
      [&] { return Load(checkpoint, storages, device, options); });
}

Result<LoadStats> LoadToDevice(const Checkpoint& checkpoint,
                               std::span<const uint32_t> storages,
                               std::span<const DeviceBuffer> targets,
                               const CudaDevice& device,
                               const LoadOptions& options) {
  return OrNoMemory(
      [&] { return LoadInto(checkpoint, storages, targets, device, options); });
}

}  // namespace haulway
