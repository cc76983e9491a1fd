// Loading many storages at once: one plan, many reads in flight, one arena.
//
// The engine knows no format. It is given an index (what lies where), merges
// the wanted ranges into few large reads, chooses how to read by looking at
// the source, runs the reads on several threads, decodes and checks each
// storage while its bytes are in cache, and hands out Buffers.
//
// LoadStorages() gives all of them at once, in one allocation or mapping.
// LoadEach() hands them over one by one, and LoadPieces() in pieces, for
// destinations that do not hold them all; load_tensors.h fills the caller's own
// memory.

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "haulway/buffer.h"
#include "haulway/checkpoint.h"
#include "haulway/device.h"
#include "haulway/export.h"
#include "haulway/limits.h"
#include "haulway/source.h"
#include "haulway/status.h"

namespace haulway {

struct LoadOptions {
  int threads = 0;  // 0: as many as pay off.
  // kAuto is chosen by looking, and LoadStats::reason says why. With kMmap
  // storages are views of the source where it has them as they are wanted, and
  // change with it; with any other mode no change of the file reaches them.
  IoMode io = IoMode::kAuto;
  bool verify = false;  // Check every CRC-32 and digest that there is.
  uint64_t largest_hole = 64 * kKiB;  // Unwanted bytes read to merge two reads.
  uint64_t chunk_bytes = 4 * kMiB;    // Per request, at most.
  // Called with bytes done and bytes to do in all, holes and frames included,
  // from one thread at a time but not always the same one.
  std::function<void(uint64_t done, uint64_t total)> progress = nullptr;
  const std::atomic<bool>* cancel = nullptr;  // Set to true to stop.
  // Of memory that is not the destination: compressed bytes on their way, and
  // what LoadEach() and LoadPieces() hold before it is taken. Exceeded only by
  // a single storage that is larger and cannot be handed over in pieces.
  uint64_t memory_budget = 256 * kMiB;
  // Drop the system's copy of what was read, so that bytes are not in memory
  // twice. No effect on storages that are views.
  bool drop_cache = false;
  // How often a request is made again that failed with kUnavailable or
  // kTimeout.
  int retries = 3;
  // Makes the memory that is loaded into: writable, aligned to a page, of at
  // least the bytes asked for; of any content. Called once, before any read;
  // not at all if nothing is to be loaded. By default AllocateBuffer().
  std::function<Result<Buffer>(uint64_t bytes)> allocate = nullptr;
};

struct LoadStats {
  uint64_t tensor_bytes = 0;  // Asked for.
  uint64_t read_bytes = 0;    // Read, holes and frames included.
  uint64_t requests = 0;
  uint64_t retries = 0;
  int threads = 0;
  double seconds = 0;
  // Where the time went. But for the first it is that of all threads added up,
  // so their sum may exceed `seconds`.
  double plan_seconds = 0;
  double allocate_seconds = 0;  // Getting memory, and its pages.
  double read_seconds = 0;
  double decode_seconds = 0;  // Decrypting, inflating, swapping bytes.
  double verify_seconds = 0;
  IoMode io = IoMode::kAuto;  // What was chosen.
  std::string reason;  // "12 % of it is in the page cache, ext4 takes ...".
  // Of the memory that was loaded into, which pages were taken, and why; empty
  // below 8 MiB, and where the caller allocates.
  std::string pages;
  std::string file_system;  // "ext4"; empty if the source is no local file.
  double resident = 0;      // The share that was in the page cache before.
};

struct LoadedStorages {
  // Parallel to the list that was asked for; empty storages are empty Buffers.
  std::vector<Buffer> buffers;
  LoadStats stats;
};

// Loads the given rows of checkpoint.index().storages. Requires: valid rows;
// a row may be asked for once. Blocks; fails with the first error met, with
// kUnsupported if the source cannot be read in the way that options.io names,
// and kCancelled if it was told to stop.
HAULWAY_EXPORT Result<LoadedStorages> LoadStorages(
    const Checkpoint& checkpoint, std::span<const uint32_t> storages,
    const LoadOptions& options = {});

// A run of the bytes of one storage, as they are in memory.
struct Piece {
  size_t position = 0;  // In the list that was asked for.
  uint64_t offset = 0;  // In the storage.
  Buffer bytes;         // Writable.
};

// Loads storages in pieces of at most `largest_piece` bytes, rounded up to 64,
// in memory of at most options.memory_budget; options.allocate makes it.
// `take` is called with every piece once, in any order, from any thread, but
// for one piece of a storage at a time. The memory of a piece is used again
// when the last copy of its Buffer is gone, and reading waits for that; so
// `take` may keep some, but must not wait for further pieces to come before it
// lets them go. Empty storages have no pieces. A digest that differs is known
// only after the pieces it covers were taken. Requires and fails as
// LoadStorages(), and with what `take` returns.
HAULWAY_EXPORT Result<LoadStats> LoadPieces(
    const Checkpoint& checkpoint, std::span<const uint32_t> storages,
    const LoadOptions& options, uint64_t largest_piece,
    const std::function<Status(Piece piece)>& take);

enum class LoadOrder : uint8_t {
  kPlan,        // By place in the source.
  kCompletion,  // As they are done.
};

// Loads storages and hands each over whole, on the calling thread, while other
// threads read the next ones, in memory of at most options.memory_budget that
// was not taken yet. `take` owns what it is given. Empty storages come as
// empty Buffers. options.allocate is called for several storages at once, and
// from several threads. Requires and fails as LoadStorages(), and with what
// `take` returns.
HAULWAY_EXPORT Result<LoadStats> LoadEach(
    const Checkpoint& checkpoint, std::span<const uint32_t> storages,
    const LoadOptions& options, LoadOrder order,
    const std::function<Status(size_t position, Buffer bytes)>& take);

// LoadEach() for who would rather ask than be called: threads of its own load
// ahead of the caller.
class HAULWAY_EXPORT StorageStream {
 public:
  struct Loaded {
    size_t position = 0;
    Buffer bytes;
  };

  // Begins to load. What `options` points to must outlive the stream; its
  // progress is called from the stream's threads.
  static Result<std::unique_ptr<StorageStream>> Open(
      std::shared_ptr<const Checkpoint> checkpoint,
      std::vector<uint32_t> storages, const LoadOptions& options,
      LoadOrder order);
  StorageStream(const StorageStream&) = delete;
  StorageStream& operator=(const StorageStream&) = delete;
  ~StorageStream();  // Stops what is under way, and waits for that.

  // The next storage, nullopt after the last one. Blocks. Fails as LoadEach();
  // every later call fails in the same way. One thread at a time.
  Result<std::optional<Loaded>> Next();
  // What has been done so far.
  LoadStats stats() const;

 private:
  struct State;
  explicit StorageStream(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

struct DeviceStorages {
  // Parallel to the list that was asked for; in one allocation, which is freed
  // when the last of them is gone. Empty storages have no memory.
  std::vector<DeviceBuffer> buffers;
  LoadStats stats;
};

// Loads the given rows of checkpoint.index().storages, as LoadStorages() does,
// through a ring of pinned memory: reading, decoding and copying go on at the
// same time. When it returns the bytes are there, for any stream. Requires and
// fails as LoadPieces() and the device. `options.allocate` has no effect.
HAULWAY_EXPORT Result<DeviceStorages> LoadToDevice(
    const Checkpoint& checkpoint, std::span<const uint32_t> storages,
    const CudaDevice& device, const LoadOptions& options = {});

}  // namespace haulway
