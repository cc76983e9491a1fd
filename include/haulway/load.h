// Loading many storages at once: one plan, many reads in flight, one arena.
//
// The engine knows no format. It is given an index (what lies where), merges
// the wanted ranges into few large reads, runs them on several threads into
// one allocation, checks frames and digests while the bytes are in cache, and
// hands out Buffers over that allocation.

#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "haulway/buffer.h"
#include "haulway/checkpoint.h"
#include "haulway/export.h"
#include "haulway/status.h"

namespace haulway {

enum class IoMode : uint8_t {
  kAuto,  // kView if the source is in memory, else kRead.
  kView,  // No copy: storages are views of the source, where it allows.
  kRead,  // Copy into memory of our own.
};

struct LoadOptions {
  int threads = 0;  // 0: as many as the machine lets this process use.
  IoMode io = IoMode::kAuto;
  bool verify = false;  // Check every CRC-32 and digest that there is.
  uint64_t largest_hole = 64 * kKiB;  // Unwanted bytes read to merge two reads.
  uint64_t chunk_bytes = 4 * kMiB;    // Per request.
  // Called with bytes done and bytes to do in all, holes and frames included,
  // from one thread at a time but not always the same one.
  std::function<void(uint64_t done, uint64_t total)> progress = nullptr;
  const std::atomic<bool>* cancel = nullptr;  // Set to true to stop.
  // Makes the memory that is loaded into. By default AllocateBuffer().
  std::function<Result<Buffer>(uint64_t bytes)> allocate = nullptr;
};

struct LoadStats {
  uint64_t tensor_bytes = 0;  // Asked for.
  uint64_t read_bytes = 0;    // Read, holes and frames included.
  uint64_t requests = 0;
  int threads = 0;
  double seconds = 0;
  std::string path;  // "view", "read".
};

struct LoadedStorages {
  // Parallel to the list that was asked for; empty storages are empty Buffers.
  std::vector<Buffer> buffers;
  LoadStats stats;
};

// Loads the given rows of checkpoint.index().storages. Requires: valid rows;
// a row may be asked for once. Blocks; fails with the first error met.
HAULWAY_EXPORT Result<LoadedStorages> LoadStorages(
    const Checkpoint& checkpoint, std::span<const uint32_t> storages,
    const LoadOptions& options = {});

}  // namespace haulway
