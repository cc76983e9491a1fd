#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/checked.h"
#include "base/no_memory.h"
#include "haulway/buffer.h"
#include "haulway/load.h"
#include "haulway/options.h"

namespace haulway {

namespace {

constexpr uint64_t kDeviceAlignment = 256;  // As cuMemAlloc() gives.
// Size of one copy: large enough to hide what starting it costs, small enough
// that the ring holds several.
constexpr uint64_t kPieceBytes = 4 * kMiB;
// Slots of the ring that the device may be reading from; one more must be left
// for what is read from the file, or both would wait.
constexpr size_t kMostCopied = 4;

Result<DeviceStorages> Load(const Checkpoint& checkpoint,
                            std::span<const uint32_t> rows,
                            const CudaDevice& device,
                            const LoadOptions& options) {
  const auto& storages = checkpoint.index().storages;
  std::vector<uint64_t> offsets;
  offsets.reserve(rows.size());
  uint64_t total = 0;
  for (const uint32_t row : rows) {
    if (row >= storages.size()) {
      return Status(Code::kInvalidArgument,
                    fmt::format("no storage {}: expected below {}", row,
                                storages.size()));
    }
    offsets.push_back(total);
    if (!CheckedAdd(total, storages[row].nbytes, &total) ||
        !CheckedRoundUp(total, kDeviceAlignment, &total)) {
      return Status(Code::kLimit, "storages of more than 2^64 bytes");
    }
  }
  HAULWAY_ASSIGN(const DeviceBuffer memory, device.Allocate(total));
  HAULWAY_ASSIGN(const std::unique_ptr<CudaDevice::Upload> upload,
                 device.StartUpload(kMostCopied));
  LoadOptions pieces = options;
  // Twice, because half of it may be for what cannot be read in pieces.
  pieces.memory_budget = std::max(
      options.memory_budget, 2 * (kMostCopied + 2) * (kPieceBytes + 64 * kKiB));
  pieces.allocate = [&](uint64_t bytes) -> Result<Buffer> {
    Result<Buffer> pinned = device.AllocatePinned(bytes);
    // Other memory will do, more slowly.
    if (!pinned.ok() && pinned.status().code() == Code::kLimit) {
      return AllocateBuffer(bytes);
    }
    return pinned;
  };
  DeviceStorages loaded;
  HAULWAY_ASSIGN(
      loaded.stats,
      LoadPieces(checkpoint, rows, pieces, kPieceBytes, [&](Piece piece) {
        return upload->Copy(memory, offsets[piece.position] + piece.offset,
                            std::move(piece.bytes));
      }));
  HAULWAY_TRY(upload->Finish());
  loaded.buffers.reserve(rows.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    const uint64_t bytes = storages[rows[i]].nbytes;
    DeviceBuffer part = {nullptr, 0, bytes, device.ordinal()};
    if (bytes != 0) {
      part.owner = memory.owner;
      part.address = memory.address + offsets[i];
    }
    loaded.buffers.push_back(std::move(part));
  }
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

}  // namespace haulway
