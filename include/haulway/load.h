// Loading many storages at once: one plan, many reads in flight, one
// allocation.
//
// The engine knows no format. Given an index (the places of all bytes), it
// merges the wanted ranges into few large reads, looks at the source to choose
// how to read, runs the reads on several threads, decodes and checks each
// storage while its bytes are in the processor's cache, and returns Buffers.
//
// LoadStorages() returns all storages at once, in one allocation or mapping.
// LoadEach() hands them over one by one and LoadPieces() in pieces, for
// destinations that cannot hold all of them. LoadTensors() fills the caller's
// memory with tensors or slices of tensors. LoadToDevice() fills GPU memory,
// and LoadShared() fills memory that other processes attach.

#pragma once

#include <atomic>
#include <chrono>
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
#include "haulway/open.h"
#include "haulway/options.h"
#include "haulway/source.h"
#include "haulway/status.h"

namespace haulway {

struct MemoryPoolOptions {
  // Most bytes to keep; 0: an eighth of the memory that the process can have
  // when memory is freed first, by the machine and its cgroup.
  uint64_t most_bytes = 0;
  std::chrono::milliseconds keep{2000};  // For how long.
};

// A MemoryPool keeps memory of loads after it was freed, for the next load.
//
// Getting a GiB from the system takes longer than reading a GiB that is in the
// page cache, so a program that loads again and again, and frees what it loaded
// before, loads up to three times as fast with a pool. Freed memory of 8 MiB
// or more is kept for a short time and up to a limit, and then goes back to the
// system. While memory is kept, the pool has one thread.
//
// Threads: every method may be called from many threads at once. In a process
// that was forked, the pool keeps nothing. Buffers may outlive the pool.
class HAULWAY_EXPORT MemoryPool {
 public:
  class Pages;

  explicit MemoryPool(const MemoryPoolOptions& options = {});

  // Returns how many bytes are kept now.
  uint64_t kept_bytes() const;
  // Gives all kept bytes back to the system, and ends the thread.
  void Clear() const;

 private:
  friend class PooledMemory;
  std::shared_ptr<Pages> pages_;
};

struct LoadOptions {
  int threads = 0;  // 0: chosen by looking at the source.
  // kAuto looks at the source; LoadStats::reason explains the choice. With
  // kMmap, storages are views of the file where it has the bytes as needed, and
  // they change if the file changes. With every other mode, later changes of
  // the file do not reach the storages.
  IoMode io = IoMode::kAuto;
  bool verify = false;  // Check every CRC-32 and digest in the file.
  // Largest gap of unwanted bytes that is read in order to merge two reads; at
  // least 256 KiB for servers.
  uint64_t largest_hole = 64 * kKiB;
  uint64_t chunk_bytes = 4 * kMiB;  // Per request; for servers 4 times that.
  // Called with the bytes done and the bytes to do, gaps and frames included,
  // from one thread at a time but not always the same thread.
  std::function<void(uint64_t done, uint64_t total)> progress = nullptr;
  const std::atomic<bool>* cancel = nullptr;  // Set to true to stop.
  // Limit for memory other than the destination: compressed bytes in transit,
  // and what LoadEach() and LoadPieces() hold until it is taken. Exceeded only
  // by a single storage that is larger and cannot be handed over in pieces.
  uint64_t memory_budget = 256 * kMiB;
  // Drop the page cache of the ranges that were read, so that the bytes are not
  // in memory twice. No effect on storages that are views.
  bool drop_cache = false;
  // How often a request that failed with kUnavailable or kTimeout is repeated.
  // Sources of servers do this themselves, as RemoteOptions::retries says.
  int retries = kDefaultRetries;
  // Allocates the destination: writable, aligned to a page, at least `bytes`
  // long, with any content. Called once, before any read; not called if there
  // is nothing to load. By default AllocateBuffer().
  std::function<Result<Buffer>(uint64_t bytes)> allocate = nullptr;
  // LoadStorages() takes the destination from this pool, and frees to it; by
  // default the system's memory. No effect if `allocate` is set.
  const MemoryPool* pool = nullptr;
};

// Options that are also command-line flags and, but for the last two, keywords
// in Python.
inline constexpr FieldTable kLoadOptionFields{

    Field("io", &LoadOptions::io,
          "how to read: 'mmap' maps the file; 'snapshot' maps the file and "
          "copies it just before another program changes it; 'pread', 'direct' "
          "(bypassing the page cache) and 'uring' (many such reads at a time) "
          "read into new memory; 'auto' chooses by looking at the file and the "
          "machine",
          {.value_name = "MODE"}),
    Field("verify", &LoadOptions::verify,
          "check every checksum in the same pass"),
    Field("threads", &LoadOptions::threads,
          "number of threads that read, decode and verify; 0: chosen "
          "automatically",
          {.most = kMostThreads}),
    Field("memory_budget", &LoadOptions::memory_budget,
          "limit for memory beside the tensors', used for decoding and for "
          "what waits to be taken",
          {.unit = Quantity::kBytes}),
    Field("drop_cache", &LoadOptions::drop_cache,
          "drop the page cache of the ranges that were read"),
    Field("retries", &LoadOptions::retries,
          "how often a failed read or request is repeated",
          {.most = 1000, .flag = "-"}),
    Field("largest_hole", &LoadOptions::largest_hole,
          "largest gap of unwanted bytes that is read in order to merge two "
          "reads",
          {.unit = Quantity::kBytes, .in_python = false}),
    Field("chunk_bytes", &LoadOptions::chunk_bytes,
          "maximum bytes of one request",
          {.unit = Quantity::kBytes, .least = 1, .in_python = false}),
};
constexpr const auto& FieldsOf(const LoadOptions&) { return kLoadOptionFields; }

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

inline constexpr FieldTable kLoadStatFields{
    Field("tensor_bytes", &LoadStats::tensor_bytes,
          "bytes of the tensors that were loaded", Adding::kSum),
    Field("read_bytes", &LoadStats::read_bytes,
          "bytes read, gaps and frames included; 0 for views", Adding::kSum),
    Field("requests", &LoadStats::requests,
          "reads that succeeded; for servers, all requests", Adding::kSum),
    Field("retries", &LoadStats::retries, "requests that were repeated",
          Adding::kSum),
    Field("threads", &LoadStats::threads, "number of threads that read",
          Adding::kLargest),
    Field("seconds", &LoadStats::seconds, "duration of the call", Adding::kSum),
    Field("plan_seconds", &LoadStats::plan_seconds,
          "time of planning, on one thread", Adding::kSum),
    Field("allocate_seconds", &LoadStats::allocate_seconds,
          "time of allocating memory and its pages; this and the times below "
          "are summed over all threads, so they may exceed `seconds`",
          Adding::kSum),
    Field("read_seconds", &LoadStats::read_seconds, "time of reading",
          Adding::kSum),
    Field("decode_seconds", &LoadStats::decode_seconds,
          "time of decrypting, inflating and byte-swapping", Adding::kSum),
    Field("verify_seconds", &LoadStats::verify_seconds,
          "time of computing checksums and digests", Adding::kSum),
    Field("io", &LoadStats::io, "the way of reading that was chosen"),
    Field("reason", &LoadStats::reason, "the reason for the choice"),
    Field("pages", &LoadStats::pages,
          "huge pages used for the destination, and the time of getting one "
          "compared with small pages, or \"memory of an earlier load\"; empty "
          "below 8 MiB, and if the caller allocates"),
    Field("file_system", &LoadStats::file_system,
          "file system, such as \"ext4\"; empty if the source is not a local "
          "file"),
    Field("resident", &LoadStats::resident,
          "share of the file that was in the page cache before"),
};
constexpr const auto& FieldsOf(const LoadStats&) { return kLoadStatFields; }

struct LoadedStorages {
  // Parallel to the list of rows; an empty storage is an empty Buffer.
  std::vector<Buffer> buffers;
  LoadStats stats;
};

// Loads the given rows of checkpoint.index().storages. Requires: valid rows;
// each row at most once. Blocks. Fails with the first error, with kUnsupported
// if the source cannot be read in the way that options.io names, and with
// kCancelled if `cancel` is set.
HAULWAY_EXPORT Result<LoadedStorages> LoadStorages(
    const Checkpoint& checkpoint, std::span<const uint32_t> storages,
    const LoadOptions& options = {});

// A run of bytes of one storage, decoded.
struct Piece {
  size_t position = 0;  // Position in the list of rows.
  uint64_t offset = 0;  // Offset in the storage.
  Buffer bytes;         // Writable.
};

// Loads storages in pieces of at most `largest_piece` bytes, rounded up to 64,
// in memory of at most options.memory_budget that options.allocate makes.
// `take` is called once for every piece, in any order and from any thread, but
// for only one piece of a storage at a time. The memory of a piece is reused
// when the last copy of its Buffer is destroyed, and reading waits for that. So
// `take` may keep some pieces, but must not wait for further pieces before it
// releases them. Empty storages have no pieces. A digest that differs is
// reported only after the pieces that it covers were taken. Requires and fails
// as LoadStorages(), and fails with any error that `take` returns.
HAULWAY_EXPORT Result<LoadStats> LoadPieces(
    const Checkpoint& checkpoint, std::span<const uint32_t> storages,
    const LoadOptions& options, uint64_t largest_piece,
    const std::function<Status(Piece piece)>& take);

enum class LoadOrder : uint8_t {
  kPlan,        // In the order of the source.
  kCompletion,  // As they are completed.
};

// Loads storages and hands over each as a whole, on the calling thread, while
// other threads read the next ones. Storages that were not taken yet use at
// most options.memory_budget. `take` owns its Buffer. Empty storages are empty
// Buffers. options.allocate is called for several storages at once, and from
// several threads. Requires and fails as LoadStorages(), and fails with any
// error that `take` returns.
HAULWAY_EXPORT Result<LoadStats> LoadEach(
    const Checkpoint& checkpoint, std::span<const uint32_t> storages,
    const LoadOptions& options, LoadOrder order,
    const std::function<Status(size_t position, Buffer bytes)>& take);

// A StorageStream is LoadEach() for callers that ask for the next storage
// instead of passing a function. Its own threads load ahead of the caller.
class HAULWAY_EXPORT StorageStream {
 public:
  struct Loaded {
    size_t position = 0;
    Buffer bytes;
  };

  // Starts to load. Everything that `options` points to must outlive the
  // stream; `progress` is called from the stream's threads.
  static Result<std::unique_ptr<StorageStream>> Open(
      std::shared_ptr<const Checkpoint> checkpoint,
      std::vector<uint32_t> storages, const LoadOptions& options,
      LoadOrder order);
  StorageStream(const StorageStream&) = delete;
  StorageStream& operator=(const StorageStream&) = delete;
  ~StorageStream();  // Stops the reads in progress and waits for them.

  // Returns the next storage, or nullopt after the last one. Blocks. Fails as
  // LoadEach(); every later call then fails in the same way. One thread at a
  // time.
  Result<std::optional<Loaded>> Next();
  // Returns the statistics so far.
  LoadStats stats() const;

 private:
  struct State;
  explicit StorageStream(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

struct DeviceStorages {
  // Parallel to the list of rows. All lie in one allocation, which is freed
  // when the last of them is destroyed. Empty storages have no memory.
  std::vector<DeviceBuffer> buffers;
  LoadStats stats;
};

// Loads the given rows of checkpoint.index().storages to a GPU through a ring
// of pinned memory of at most 32 MiB, which the device keeps for the next call;
// reading, decoding and copying run at the same time. When the call returns,
// the bytes are there for every stream. `options.allocate` has no effect.
// Requires and fails as LoadPieces() and the device.
HAULWAY_EXPORT Result<DeviceStorages> LoadToDevice(
    const Checkpoint& checkpoint, std::span<const uint32_t> storages,
    const CudaDevice& device, const LoadOptions& options = {});
// Loads them into `targets`, memory of the device that the caller has, parallel
// to `storages`. Fails with kInvalidArgument if a size is not the storage's;
// after another failure the targets are partly filled. Requires: nothing else
// uses the targets during the call.
HAULWAY_EXPORT Result<LoadStats> LoadToDevice(
    const Checkpoint& checkpoint, std::span<const uint32_t> storages,
    std::span<const DeviceBuffer> targets, const CudaDevice& device,
    const LoadOptions& options = {});

// The elements start, start + step, ... of one dimension, up to but not
// including `stop`. All numbers count from the front: start and stop lie in [0,
// size], and for a negative step in [-1, size).
struct DimSlice {
  int64_t start = 0;
  int64_t stop = 0;
  int64_t step = 1;  // Not 0.
};

// Returns the number of elements in the slice. Requires: step is not 0.
HAULWAY_EXPORT uint64_t Count(const DimSlice& slice);

// A whole storage, seen as elements of one type.
struct StorageElements {
  uint32_t storage = 0;  // Row of checkpoint.index().storages.
  DType dtype = DType::kU8;
};

// One tensor or part of a tensor, and its destination.
struct TensorRequest {
  uint32_t tensor = 0;          // Row of checkpoint.index().tensors.
  std::vector<DimSlice> slice;  // One for each dimension; empty: all of it.
  std::optional<DType> dtype;   // Cast to this dtype; by default as stored.
  // Borrowed. Dense and row-major, of exactly the size of the result.
  std::span<std::byte> out;
  // Read this storage instead of a tensor. An incomplete last element is left
  // out.
  std::optional<StorageElements> storage = std::nullopt;
  // Whether `out` holds zeros already: pages that would be filled with zeros
  // are then not touched.
  bool zeroed = false;
};

// Returns the required size of `out` in bytes. Fails as LoadTensors() does for
// an invalid request.
HAULWAY_EXPORT Result<uint64_t> RequestBytes(const Checkpoint& checkpoint,
                                             const TensorRequest& request);

// Fills the `out` of every request, in the caller's memory, with tensors or
// slices of tensors.
//
// Bytes that a slice does not need are not read: the slice becomes runs of the
// source, neighbouring runs are merged into few large reads, and the elements
// are copied to their places, byte-swapped and cast on the way. Large dense
// runs are read directly into place. Storages that are compressed, encrypted or
// to be verified are read whole, in pieces.
//
// Bytes that several requests need are read once. Elements are as stored, in
// this machine's byte order; the caller applies `conjugate` and `negative`. The
// frames of all storages in use are checked. With options.verify the digests
// are checked as well, and their storages are read whole. options.memory_budget
// limits the memory beside the caller's; a compressed storage needs as much as
// in LoadStorages().
// Requires: valid rows; requests whose memory does not overlap. Fails with
// kInvalidArgument for a slice outside the shape, memory of another size, and a
// meta tensor; and with kUnsupported for a cast that CanCast() denies; all
// these before anything is read. Otherwise fails as reading and decoding do;
// the content of `out` is then unspecified.
HAULWAY_EXPORT Result<LoadStats> LoadTensors(
    const Checkpoint& checkpoint, std::span<const TensorRequest> requests,
    const LoadOptions& options = {});

struct PlannedRead {
  uint64_t offset = 0;  // In the source.
  uint64_t bytes = 0;
};

struct PlannedReads {
  std::vector<PlannedRead> reads;  // In the order in which they are started.
  uint64_t tensor_bytes = 0;       // Size of the tensors as stored.
  uint64_t read_bytes = 0;         // Frames and gaps included.
};

// Returns the reads that LoadTensors() would make. Reads no tensor and does not
// use `out`. Fails as LoadTensors() does for invalid requests, and with kLimit
// if there are too many reads to list.
HAULWAY_EXPORT Result<PlannedReads> PlanTensors(
    const Checkpoint& checkpoint, std::span<const TensorRequest> requests,
    const LoadOptions& options = {});

struct SharedLoadOptions {
  OpenOptions open = {};
  LoadOptions load = {};  // `allocate` has no effect.
  // Returns whether to load the tensor with this name; null: load all, and the
  // whole object.
  std::function<bool(std::string_view name)> wanted = nullptr;
};

// A SharedCheckpoint is a checkpoint in shared memory: loaded once, used by any
// number of processes.
//
// LoadShared() loads into a memory file (memfd) of its own and seals it: from
// then on no process can change it. The handle is a short text that the program
// passes to other processes by any means. AttachShared() maps the same memory
// read-only, which takes as long as parsing the index.
//
// The memory lives while any process holds a SharedCheckpoint or one of its
// Buffers, and the handle works for as long: every process that holds the
// memory serves the handle automatically. The kernel frees the memory when the
// last holder is gone, even if all of them are killed.
//
// Processes of the same user may attach if they see the holder in /proc, that
// is, in the same PID namespace. The attached memory is untrusted and is
// checked as a file is.
//
// Threads: a SharedCheckpoint is immutable; use it from any number of threads.
class HAULWAY_EXPORT SharedCheckpoint {
 public:
  SharedCheckpoint(const SharedCheckpoint&) = delete;
  SharedCheckpoint& operator=(const SharedCheckpoint&) = delete;
  ~SharedCheckpoint();

  // The index. In an attached checkpoint, only the index can be read from it.
  const std::shared_ptr<const Checkpoint>& checkpoint() const {
    return checkpoint_;
  }
  // Parallel to the storages of the index; empty for a storage that was not
  // wanted. Not writable: the memory is mapped read-only, and writing to it
  // ends the process.
  const std::vector<Buffer>& buffers() const { return buffers_; }
  // Rows of the index's entries that were wanted; nullopt: all.
  const std::optional<std::vector<uint32_t>>& entries() const {
    return entries_;
  }
  // For AttachShared(); can be used any number of times.
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

// Opens and loads a checkpoint. Fails as Checkpoint::Open() and LoadStorages()
// do, and with kLimit if the system has no memory to share.
HAULWAY_EXPORT Result<std::shared_ptr<const SharedCheckpoint>> LoadShared(
    std::shared_ptr<const ByteSource> source,
    const SharedLoadOptions& options = {});

// Maps a checkpoint that this or another process loaded. `options` must be
// those of the LoadShared() call; keys are not needed, and check_frames and
// debug_offsets have no effect. Fails with kInvalidArgument if `handle` is not
// a handle, kNotFound if no process holds the memory any more,
// kPermissionDenied if another user holds it, and kCorrupt or as opening does
// if the content is invalid.
HAULWAY_EXPORT Result<std::shared_ptr<const SharedCheckpoint>> AttachShared(
    std::string_view handle, const OpenOptions& options = {});

}  // namespace haulway
