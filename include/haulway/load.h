// Loading many storages at once: one plan, many reads in flight, one arena.
//
// The engine knows no format. It is given an index (what lies where), merges
// the wanted ranges into few large reads, chooses how to read by looking at
// the source, runs the reads on several threads, decodes and checks each
// storage while its bytes are in cache, and hands out Buffers.
//
// LoadStorages() gives all of them at once, in one allocation or mapping.
// LoadEach() hands them over one by one, and LoadPieces() in pieces, for
// destinations that do not hold them all; LoadTensors() fills the caller's own
// memory with tensors or slices of them; LoadToDevice() fills a GPU's, and
// LoadShared() memory that other processes attach.

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "haulway/buffer.h"
#include "haulway/checkpoint.h"
#include "haulway/dtype.h"
#include "haulway/fields.h"
#include "haulway/options.h"
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
  // Unwanted bytes read to merge two reads; from servers 256 KiB at least.
  uint64_t largest_hole = 64 * kKiB;
  uint64_t chunk_bytes = 4 * kMiB;  // Per request; of servers 4 times that.
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

// Those that the command line has too, and Python but for the last two.
inline constexpr Field<LoadOptions> kLoadOptionFields[] = {
    {"threads", &LoadOptions::threads,
     "that read, decode and verify; 0: as many as pay off"},
    {"io", &LoadOptions::io,
     "auto, mmap, pread, direct, uring or snapshot; auto chooses by looking"},
    {"verify", &LoadOptions::verify, "check every checksum in the same pass"},
    {"memory_budget", &LoadOptions::memory_budget,
     "bytes of memory beside that of the tensors, for what has to be decoded, "
     "or waits to be taken"},
    {"drop_cache", &LoadOptions::drop_cache,
     "drop the system's copy of what was read"},
    {"retries", &LoadOptions::retries,
     "how often a read that a source could not answer is tried again"},
    {"largest_hole", &LoadOptions::largest_hole,
     "unwanted bytes read to merge two reads"},
    {"chunk_bytes", &LoadOptions::chunk_bytes, "of one request, at most"},
};
inline std::span<const Field<LoadOptions>> FieldsOf(const LoadOptions&) {
  return kLoadOptionFields;
}

struct LoadStats {
  uint64_t tensor_bytes = 0;
  uint64_t read_bytes = 0;
  uint64_t requests = 0;
  uint64_t retries = 0;
  int threads = 0;
  double seconds = 0;
  double plan_seconds = 0;
  double allocate_seconds = 0;
  double read_seconds = 0;
  double decode_seconds = 0;
  double verify_seconds = 0;
  IoMode io = IoMode::kAuto;
  std::string reason;
  std::string pages;
  std::string file_system;
  double resident = 0;
};

inline constexpr Field<LoadStats> kLoadStatFields[] = {
    {"tensor_bytes", &LoadStats::tensor_bytes, "asked for", Adding::kSum},
    {"read_bytes", &LoadStats::read_bytes,
     "read, with holes and frames; 0 for views", Adding::kSum},
    {"requests", &LoadStats::requests,
     "that were answered; of servers all that were made", Adding::kSum},
    {"retries", &LoadStats::retries, "requests that had to be made again",
     Adding::kSum},
    {"threads", &LoadStats::threads, "that read", Adding::kLargest},
    {"seconds", &LoadStats::seconds, "of the call", Adding::kSum},
    {"plan_seconds", &LoadStats::plan_seconds, "of one thread", Adding::kSum},
    {"allocate_seconds", &LoadStats::allocate_seconds,
     "getting memory and its pages; this and those below are of all threads "
     "added up, so they may exceed `seconds`",
     Adding::kSum},
    {"read_seconds", &LoadStats::read_seconds, "reading", Adding::kSum},
    {"decode_seconds", &LoadStats::decode_seconds,
     "decrypting, inflating, swapping bytes", Adding::kSum},
    {"verify_seconds", &LoadStats::verify_seconds, "digesting", Adding::kSum},
    {"io", &LoadStats::io, "what was chosen"},
    {"reason", &LoadStats::reason, "why"},
    {"pages", &LoadStats::pages,
     "of the memory that was loaded into: how many huge pages were taken, and "
     "what one took against small ones; empty below 8 MiB, and where the "
     "caller allocates"},
    {"file_system", &LoadStats::file_system,
     "\"ext4\"; empty if the source is no local file"},
    {"resident", &LoadStats::resident,
     "the share of the file that was in the page cache before"},
};
inline std::span<const Field<LoadStats>> FieldsOf(const LoadStats&) {
  return kLoadStatFields;
}

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

// The elements start, start + step, ... of one dimension, until `stop` is
// reached or passed, which is not among them. Numbers count from the front:
// start and stop lie in [0, size], for a negative step in [-1, size).
struct DimSlice {
  int64_t start = 0;
  int64_t stop = 0;
  int64_t step = 1;  // Not 0.
};

// How many elements it holds. Requires: step is not 0.
HAULWAY_EXPORT uint64_t Count(const DimSlice& slice);

// All of a storage, seen as elements of one type.
struct StorageElements {
  uint32_t storage = 0;  // Row of checkpoint.index().storages.
  DType dtype = DType::kU8;
};

// One tensor, or part of it, and where it goes.
struct TensorRequest {
  uint32_t tensor = 0;          // Row of checkpoint.index().tensors.
  std::vector<DimSlice> slice;  // One for each dimension; none: all of it.
  std::optional<DType> dtype;   // Cast to this; by default as stored.
  // Dense and row-major, of exactly the size that this comes to. Borrowed.
  std::span<std::byte> out;
  // Instead of a tensor; what is left of a last element is left out.
  std::optional<StorageElements> storage = std::nullopt;
  // Whether `out` holds zeros: pages of it that are to, are not touched then.
  bool zeroed = false;
};

// Of how many bytes `out` must be. Fails as LoadTensors() does for a request
// that is wrong in itself.
HAULWAY_EXPORT Result<uint64_t> RequestBytes(const Checkpoint& checkpoint,
                                             const TensorRequest& request);

// Fills every request's `out`: tensors or slices of them, in memory that the
// caller owns.
//
// What a slice does not need is not read: a slice becomes runs of the source,
// neighbouring runs become few large reads, and the elements go from there to
// their places, byte-swapped and cast on the way. Large dense runs are read
// straight into place. Storages that are compressed, encrypted or to be
// verified are read whole, piece by piece.
//
// What several requests need is read once. Elements are as stored, in this
// machine's byte order: `conjugate` and `negative` are the caller's to apply.
// Of storages it touches it checks the frames, and with options.verify the
// digests, for which it reads them whole. The memory that it takes beside the
// caller's is bounded by options.memory_budget; of a compressed storage it
// needs what the engine needs.
// Requires: valid rows; requests whose memory does not overlap.
// Fails with kInvalidArgument for a slice that leaves the shape, memory of
// another size, and a meta tensor; kUnsupported for a cast that CanCast()
// denies: all these before anything is read. Else as reading and decoding do;
// then what `out` holds is unspecified.
HAULWAY_EXPORT Result<LoadStats> LoadTensors(
    const Checkpoint& checkpoint, std::span<const TensorRequest> requests,
    const LoadOptions& options = {});

struct PlannedRead {
  uint64_t offset = 0;  // In the source.
  uint64_t bytes = 0;
};

struct PlannedReads {
  std::vector<PlannedRead> reads;  // In the order in which they are begun.
  uint64_t tensor_bytes = 0;       // Asked for, as stored.
  uint64_t read_bytes = 0;         // Frames and holes included.
};

// What LoadTensors() would read; reads nothing, and looks at no `out`. Fails
// as it does for requests that are wrong in themselves; with kLimit if the
// reads are too many to list.
HAULWAY_EXPORT Result<PlannedReads> PlanTensors(
    const Checkpoint& checkpoint, std::span<const TensorRequest> requests,
    const LoadOptions& options = {});

struct SharedLoadOptions {
  OpenOptions open = {};
  LoadOptions load = {};  // `allocate` has no effect.
  // Which tensors to load, by name; null: all, and the whole object.
  std::function<bool(std::string_view name)> wanted = nullptr;
};

// A SharedCheckpoint is in shared memory: loaded once, used by any number of
// processes.
//
// LoadShared() loads into a memory file (memfd) of its own and seals it:
// from then on nobody can change it, whoever maps it. Its handle is a short
// text, to be given to other processes however one likes. AttachShared() maps
// the same memory read-only, which takes as long as parsing the index.
//
// The memory lives as long as, in any process, a SharedCheckpoint or a Buffer
// of one does, and so long the handle works: whichever process is left serves
// it, without doing anything. The kernel frees it when the last is gone, also
// if all of them are killed.
//
// Who may attach: processes of the same user that see the others in /proc,
// so in the same PID namespace. What is attached is taken for untrusted, and
// checked as a file is.
//
// Threads: it is immutable; use it from any number of threads.
class HAULWAY_EXPORT SharedCheckpoint {
 public:
  SharedCheckpoint(const SharedCheckpoint&) = delete;
  SharedCheckpoint& operator=(const SharedCheckpoint&) = delete;
  ~SharedCheckpoint();

  // Its index; of the attached one, only that can be read.
  const std::shared_ptr<const Checkpoint>& checkpoint() const {
    return checkpoint_;
  }
  // Parallel to the storages of the index, not writable; empty where a storage
  // was not wanted. Memory that is mapped without the right to write: writing
  // to it regardless ends the process.
  const std::vector<Buffer>& buffers() const { return buffers_; }
  // Rows of the index's entries that were wanted; nullopt: all.
  const std::optional<std::vector<uint32_t>>& entries() const {
    return entries_;
  }
  // For AttachShared(), as often as one likes.
  const std::string& handle() const { return handle_; }
  uint64_t mapped_bytes() const { return mapped_bytes_; }
  const LoadStats& stats() const { return stats_; }  // Zeros if attached.

 private:
  friend class SharedCheckpointBuilder;
  SharedCheckpoint() = default;

  std::shared_ptr<const Checkpoint> checkpoint_;
  std::vector<Buffer> buffers_;
  std::optional<std::vector<uint32_t>> entries_;
  std::string handle_;
  uint64_t mapped_bytes_ = 0;
  LoadStats stats_;
};

// Opens and loads. Fails as Checkpoint::Open() and LoadStorages() do, with
// kLimit if the system has no memory to share.
HAULWAY_EXPORT Result<std::shared_ptr<const SharedCheckpoint>> LoadShared(
    std::shared_ptr<const ByteSource> source,
    const SharedLoadOptions& options = {});

// Maps what another process, or this one, loaded. `options` must be those that
// it was opened with; keys are not needed, nor are check_frames and
// debug_offsets heeded. Fails with kInvalidArgument if `handle` is none,
// kNotFound if nobody holds the memory any more, kPermissionDenied if another
// user does, and kCorrupt or as opening does if it does not hold what it must.
HAULWAY_EXPORT Result<std::shared_ptr<const SharedCheckpoint>> AttachShared(
    std::string_view handle, const OpenOptions& options = {});

}  // namespace haulway
