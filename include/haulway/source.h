// A ByteSource is a fixed-length run of bytes that can be read at any offset:
// a file, a mapping, an HTTP object, a member of an archive.
//
// Units: offsets and lengths are bytes.
// Threads: every const method may be called from many threads at once.
// Lifetime: size() never changes. If the bytes change, reads fail with kCorrupt
// where the change can be detected; otherwise they return old or new bytes.

#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <istream>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "haulway/buffer.h"
#include "haulway/status.h"

namespace haulway {

// How the bytes of a source are read.
enum class IoMode : uint8_t {
  kAuto,    // Whatever suits the source.
  kMmap,    // Mapped: no copy if the bytes need no transformation.
  kPread,   // Through the page cache.
  kDirect,  // Bypasses the page cache, with O_DIRECT.
  kUring,   // As kDirect, many reads at once by io_uring(7).
  // Mapped, and copied into the process's memory just before someone changes
  // the file; free as long as nobody does. Needs a read lease.
  kSnapshot,
};

inline constexpr std::string_view kIoModeWords[] = {
    "auto", "mmap", "pread", "direct", "uring", "snapshot"};
constexpr std::span<const std::string_view> WordsOf(IoMode) {
  return kIoModeWords;
}
// One of kIoModeWords.
HAULWAY_EXPORT std::string_view Name(IoMode io);

struct ByteRange {
  uint64_t offset = 0;
  uint64_t length = 0;
};

// The properties of a source that are known before it is read.
struct SourceTraits {
  bool views = false;  // View() has the bytes.
  // Reopen() takes every mode that the other traits allow.
  bool local_file = false;
  bool remote = false;  // On a network file system, or over a network.
  bool direct = false;  // Supports O_DIRECT reads.
  // Reads are cheapest if offset and address are equal modulo this; 0: no
  // difference.
  uint64_t direct_alignment = 0;
  bool uring = false;         // This process may use io_uring(7).
  std::string file_system{};  // "ext4", "tmpfs", ...; empty if unknown.
  // The share of the given ranges that is in memory, estimated from samples. 1
  // if it cannot be known, because the reads chosen for 1 are never very wrong.
  double resident = 0;
  int parallel = 0;  // Useful number of requests in flight; 0: one per thread.
  // ReadMany() itself reads neighbours at once: a caller should leave out the
  // holes between requests.
  bool gathers = false;
  // With `gathers`: a hole of so many bytes costs nothing, because the source
  // makes these bytes anyway.
  uint64_t free_hole = 0;
  // Bytes are decoded from the beginning of a storage on: one thread should
  // read a storage, from its beginning to its end.
  bool in_order = false;

  // Returns whether each request is a round trip to a server.
  bool is_server() const { return remote && !local_file; }

  // Returns the traits of a source that makes its bytes from pieces of one with
  // these.
  SourceTraits Gathered() const {
    SourceTraits made;
    made.remote = remote;
    made.file_system = file_system;
    made.parallel = parallel;
    made.resident = is_server() ? 0 : 1;
    made.gathers = true;
    return made;
  }
};

// A range of an open local file, for the kernel to copy.
struct FileBytes {
  int fd = -1;  // Open for reading, as long as the source lives.
  uint64_t offset = 0;
};

// Counts of requests to servers so far.
struct RemoteStats {
  uint64_t requests = 0;  // Including retries and redirects.
  uint64_t retries = 0;
  uint64_t received_bytes = 0;  // Size of response bodies.
  // An object had neither an ETag nor a time of change, so only its size shows
  // whether it was replaced.
  bool unvalidated = false;
  // Identifies this version of the object, and differs for another object with
  // the same name; empty if the server sends nothing suitable.
  std::string version{};
};

struct ReadRequest {
  uint64_t offset;
  std::span<std::byte> out;  // Borrowed until the call returns.
};

class HAULWAY_EXPORT ByteSource {
 public:
  virtual ~ByteSource() = default;

  // The origin of the bytes, for messages. Never contains a credential.
  virtual std::string_view name() const HAULWAY_LIFETIME_BOUND = 0;
  virtual uint64_t size() const = 0;

  // Fills all of `out`, or fails; there are no short reads. Fails with
  // kTruncated if the range ends past size(). Retries EINTR and partial reads
  // and, for network sources, kUnavailable. After a failure the content of
  // `out` is unspecified.
  virtual Status ReadAt(uint64_t offset, std::span<std::byte> out) const = 0;

  // ReadAt() for each request, in any order, possibly at the same time. Returns
  // the first failure; the content of every `out` is then unspecified.
  virtual Status ReadMany(std::span<const ReadRequest> requests) const;

  // Returns the bytes in place if they are already in memory; otherwise
  // nullopt, which is not an error. The Buffer keeps the memory alive.
  // Requires: the range lies within size().
  virtual std::optional<Buffer> View(uint64_t offset, uint64_t length) const;

  // Returns where the same bytes lie in a local file; nullopt if they do not,
  // or if they must pass through this process. Requires: the range lies within
  // size().
  virtual std::optional<FileBytes> InFile(uint64_t offset,
                                          uint64_t length) const;

  // Returns what is known about reading these ranges, in less than a
  // millisecond. Parts past size() are ignored. Never fails: unknown traits are
  // reported as absent.
  virtual SourceTraits Look(std::span<const ByteRange> ranges) const;

  // Returns the counts of requests so far, for these bytes and for neighbours;
  // nullopt if they do not come from one server.
  virtual std::optional<RemoteStats> remote_stats() const;

  // Returns the same bytes, read in another way; kAuto means kPread. The file
  // is the same one, even if its name now leads to another file. Fails with
  // kUnsupported, with the reason, if that way is not available.
  virtual Result<std::shared_ptr<const ByteSource>> Reopen(IoMode io) const;

  // Returns the same bytes as a source whose View() has these ranges, without a
  // copy. Their content is fixed at the time of the call, whatever happens to
  // the file later, and the viewer may change the bytes. Other views may share
  // the same memory. Fails with kUnsupported, with the reason, if that is not
  // available.
  virtual Result<std::shared_ptr<const ByteSource>> Snapshot(
      std::span<const ByteRange> ranges) const;

  // Reads in the pages of a View() that the system would otherwise read when
  // they are first touched. Fails as reading does. No effect if the pages in
  // question are unknown, or if touching them costs no more.
  virtual Status Prefetch(uint64_t offset, uint64_t length) const;

  // Compares these ranges with the digests in a signature, if the source has
  // one (signature.h); View() has them afterwards, and no call returns bytes of
  // such a source that are not compared. Fails with kMismatch, and as reading
  // does. No effect on other sources.
  virtual Status Authenticate(std::span<const ByteRange> ranges) const;

  // While the result lives, a source with a signature and its neighbours return
  // bytes that are compared only later, when other bytes of the same files are:
  // for parsing an index. Null for other sources. The result must not outlive
  // the source.
  virtual std::shared_ptr<const void> BeginParsing() const;

  // Drops these bytes from the system's page cache. Views stay valid. No effect
  // if there is no such cache.
  virtual void DropCache(uint64_t offset, uint64_t length) const;

  // Opens a file beside this one, read in the same way. `name` is a relative
  // path from this file's folder. Fails with kInvalidArgument for a name that
  // could lead outside (absolute, or with ".."), kUnsupported if the source has
  // no neighbours, otherwise as opening does.
  virtual Result<std::shared_ptr<const ByteSource>> OpenNeighbour(
      std::string_view name) const;

  // Opens the checkpoint of version `base`, on which `version` builds, of which
  // this file is the index. Looks beside this file's folder, then at
  // SourceOptions::base. Fails with kNotFound if neither has it, otherwise as
  // opening does.
  virtual Result<std::shared_ptr<const ByteSource>> OpenBase(
      std::string_view version, std::string_view base) const;
};

// Makes a source of memory that the caller keeps alive and unchanged.
HAULWAY_EXPORT std::shared_ptr<const ByteSource> MakeMemorySource(
    std::span<const std::byte> bytes, std::string name = "memory");
// Makes a source of memory that the Buffer owns.
HAULWAY_EXPORT std::shared_ptr<const ByteSource> MakeBufferSource(
    Buffer bytes, std::string name = "memory");

// Makes a source of a seekable stream, from its current position to its end. A
// lock serialises reads, and the stream's exceptions() are switched off. Fails
// with kIoError if the stream cannot seek.
HAULWAY_EXPORT Result<std::shared_ptr<const ByteSource>> MakeIstreamSource(
    std::shared_ptr<std::istream> stream, std::string name = "stream");

// Makes a source of a function. `read` must fill all of `out` or fail, and may
// be called from many threads at once.
using ReadFunction =
    std::function<Status(uint64_t offset, std::span<std::byte> out)>;
HAULWAY_EXPORT std::shared_ptr<const ByteSource> MakeFunctionSource(
    uint64_t size, ReadFunction read, std::string name);

// Opens a local file that is read with pread(2). Fails with kNotFound,
// kPermissionDenied, kUnsupported (not a regular file) or kIoError.
HAULWAY_EXPORT Result<std::shared_ptr<const ByteSource>> OpenFileSource(
    std::string path);

// Opens a local file that is mapped whole, private and copy-on-write: writing
// to a View() never reaches the file. If the file is truncated while it is
// mapped, touching the lost pages raises SIGBUS, except in the library's own
// reads after InstallSigbusGuard(). OpenFileSource() has no such hazard.
HAULWAY_EXPORT Result<std::shared_ptr<const ByteSource>> OpenMmapSource(
    std::string path);

// Returns whether a path lies on a file system whose bytes come over a network
// or from a program (FUSE), where each page of a mapping that is touched may be
// a request. False for what cannot be found out.
HAULWAY_EXPORT bool IsOnRemoteFileSystem(const std::string& path);

// Makes the library's own reads of mapped files fail with kTruncated, instead
// of raising SIGBUS, if the file was truncated. Replaces the process's handler
// of SIGBUS and calls the old handler for every other fault. A program should
// therefore call it once, before it opens sources; the command line and the
// Python package do. Views show zeros where such a read found nothing.
HAULWAY_EXPORT void InstallSigbusGuard();

// Joins several sources into one. Each part begins at the next multiple of 4
// KiB, as listed in `starts`; the bytes between the parts read as zeros. Fails
// with kLimit if the sizes overflow.
struct Concatenation {
  std::shared_ptr<const ByteSource> source;
  std::vector<uint64_t> starts;
};
HAULWAY_EXPORT Result<Concatenation> ConcatenateSources(
    std::vector<std::shared_ptr<const ByteSource>> parts, std::string name);

// Makes a source of `length` bytes of `parent`, starting at `offset`. Fails
// with kTruncated if the range passes the parent's end.
HAULWAY_EXPORT Result<std::shared_ptr<const ByteSource>> MakeSliceSource(
    std::shared_ptr<const ByteSource> parent, uint64_t offset, uint64_t length);

}  // namespace haulway
