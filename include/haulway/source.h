// A ByteSource is a fixed-length run of bytes that can be read at any offset:
// a file, a mapping, an HTTP object, a member of an archive.
//
// Units: offsets and lengths are bytes.
// Threads: every const method may be called from many threads at once.
// Lifetime: size() never changes. If the bytes change underneath, reads fail
// with kCorrupt where that can be seen; elsewhere they return old or new bytes.

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

// How the bytes of a source are fetched.
enum class IoMode : uint8_t {
  kAuto,    // Whatever suits the source.
  kMmap,    // Mapped: no copy where the bytes are as they are wanted.
  kPread,   // Through the page cache.
  kDirect,  // Around it, with O_DIRECT.
  kUring,   // As kDirect, many at a time by io_uring(7).
  // Mapped, and brought into memory of the process before anyone changes the
  // file: as a copy, which costs nothing until then. Needs a read lease.
  kSnapshot,
};

// "auto", "mmap", "pread", "direct", "uring", "snapshot".
HAULWAY_EXPORT std::string_view Name(IoMode io);
HAULWAY_EXPORT std::optional<IoMode> IoModeFromName(std::string_view name);

struct ByteRange {
  uint64_t offset = 0;
  uint64_t length = 0;
};

// What a loader may know of a source before it reads.
struct SourceTraits {
  bool views = false;       // View() has the bytes.
  bool local_file = false;  // Reopen() takes every mode that the rest allows.
  bool remote = false;      // On a network file system, or over a network.
  bool direct = false;      // Takes O_DIRECT reads.
  // Reads are cheapest where offset and address agree modulo this; 0 if that
  // makes no difference.
  uint64_t direct_alignment = 0;
  bool uring = false;         // This process may use io_uring(7).
  std::string file_system{};  // "ext4", "tmpfs", ...; empty if there is none.
  // The share of the ranges asked about that is in memory, from samples. 1
  // where it cannot be known, which leads to reads that are never very wrong.
  double resident = 0;
  int parallel = 0;  // Requests in flight that pay off; 0: one a thread.

  // Whether each request is a round trip to a server.
  bool is_server() const { return remote && !local_file; }
};

// Bytes as they lie in an open local file, for the kernel to copy.
struct FileBytes {
  int fd = -1;  // Open for reading, as long as the source is.
  uint64_t offset = 0;
};

// What was asked of servers so far.
struct RemoteStats {
  uint64_t requests = 0;  // Retries and redirects included.
  uint64_t retries = 0;
  uint64_t received_bytes = 0;  // Of bodies.
  // Some object had no ETag and no time of change, so that only its size tells
  // whether it was replaced.
  bool unvalidated = false;
  // What the object is recognised by, another one of the same name too; empty
  // if there is nothing.
  std::string version{};
};

struct ReadRequest {
  uint64_t offset;
  std::span<std::byte> out;  // Borrowed until the call it was given to returns.
};

class HAULWAY_EXPORT ByteSource {
 public:
  virtual ~ByteSource() = default;

  // Says where the bytes come from, for messages. Never contains a credential.
  virtual std::string_view name() const HAULWAY_LIFETIME_BOUND = 0;
  virtual uint64_t size() const = 0;

  // Fills all of `out`, or fails; there are no short reads. A range that ends
  // past size() is kTruncated. Retries EINTR, partial reads and, for network
  // sources, kUnavailable. On failure the content of `out` is unspecified.
  virtual Status ReadAt(uint64_t offset, std::span<std::byte> out) const = 0;

  // ReadAt() for each request, in any order, perhaps at the same time.
  // Returns the first failure; then every `out` is unspecified.
  virtual Status ReadMany(std::span<const ReadRequest> requests) const;

  // The bytes in place when they are already in memory, else nullopt, which is
  // not an error. The Buffer keeps the memory alive on its own. Requires: the
  // range lies within size().
  virtual std::optional<Buffer> View(uint64_t offset, uint64_t length) const;

  // Where the same bytes lie in a local file; nullopt where they do not, or
  // where they are to be looked at on the way. Requires: the range lies within
  // size().
  virtual std::optional<FileBytes> InFile(uint64_t offset,
                                          uint64_t length) const;

  // What reading these ranges would meet, in under a millisecond; parts past
  // size() are not counted. Never fails: what cannot be seen is not claimed.
  virtual SourceTraits Look(std::span<const ByteRange> ranges) const;

  // What was asked so far for these bytes and for those beside them; nullopt
  // where they do not come from one server.
  virtual std::optional<RemoteStats> remote_stats() const;

  // The same bytes fetched in another way; kAuto is kPread. It is the same
  // file, even if its name leads to another one by now. Fails with
  // kUnsupported, and says why, where that way is not open.
  virtual Result<std::shared_ptr<const ByteSource>> Reopen(IoMode io) const;

  // The same bytes as a source of which View() has these ranges, without a
  // copy: as they are now, whoever changes the source later, and the viewer's
  // own to change. Other views of it may reach the same bytes. Fails with
  // kUnsupported, and says why, where that cannot be had.
  virtual Result<std::shared_ptr<const ByteSource>> Snapshot(
      std::span<const ByteRange> ranges) const;

  // Brings in what the system would have to fetch first when these bytes are
  // touched where a View() has them. Fails as reading does. Nothing happens
  // where that is not known, or costs no less than to touch them.
  virtual Status Prefetch(uint64_t offset, uint64_t length) const;

  // Tells the system that its copy of these bytes is not wanted any more.
  // Views stay intact. Nothing happens where there is no such copy.
  virtual void DropCache(uint64_t offset, uint64_t length) const;

  // Opens a file beside this one, to be read the same way. `name` is a path
  // down from this file's folder. Fails with kInvalidArgument for one that
  // could lead elsewhere (absolute, or with ".." in it), kUnsupported where
  // nothing lies beside the bytes, else as opening does.
  virtual Result<std::shared_ptr<const ByteSource>> OpenNeighbour(
      std::string_view name) const;
};

// Bytes in memory that the caller keeps alive and unchanged.
HAULWAY_EXPORT std::shared_ptr<const ByteSource> MakeMemorySource(
    std::span<const std::byte> bytes, std::string name = "memory");
// The same, where the Buffer owns them.
HAULWAY_EXPORT std::shared_ptr<const ByteSource> MakeBufferSource(
    Buffer bytes, std::string name = "memory");

// A seekable stream from its current position to its end; reads are
// serialised by a lock, and its exceptions() are switched off. Fails with
// kIoError if it cannot seek.
HAULWAY_EXPORT Result<std::shared_ptr<const ByteSource>> MakeIstreamSource(
    std::shared_ptr<std::istream> stream, std::string name = "stream");

// The custom adapter: `read` must fill all of `out` or fail, and may be called
// from many threads at once.
using ReadFunction =
    std::function<Status(uint64_t offset, std::span<std::byte> out)>;
HAULWAY_EXPORT std::shared_ptr<const ByteSource> MakeFunctionSource(
    uint64_t size, ReadFunction read, std::string name);

// A local file read with pread(2). Fails with kNotFound, kPermissionDenied,
// kUnsupported (not a regular file) or kIoError.
HAULWAY_EXPORT Result<std::shared_ptr<const ByteSource>> OpenFileSource(
    std::string path);

// A local file mapped whole, private and copy-on-write: writing to a View()
// never reaches the file. Cutting the file while it is mapped makes the lost
// pages fatal to touch (SIGBUS), except to the library's own reads where
// InstallSigbusGuard() was called; OpenFileSource() has no such hazard.
HAULWAY_EXPORT Result<std::shared_ptr<const ByteSource>> OpenMmapSource(
    std::string path);

// Makes the library's own reads of mapped files fail with kTruncated where the
// file was cut meanwhile, instead of raising SIGBUS. Replaces the process's
// handler of that signal, and calls it for everything else; so it is for
// programs to call, once, before they open sources. The command line and the
// Python package do. Views that were handed out show zeros where such a read
// found nothing.
HAULWAY_EXPORT void InstallSigbusGuard();

// Several sources as one: each part begins at the next multiple of 4 KiB, as
// `starts` says; the bytes between read as zeros. Fails with kLimit if the
// sizes overflow.
struct Concatenation {
  std::shared_ptr<const ByteSource> source;
  std::vector<uint64_t> starts;
};
HAULWAY_EXPORT Result<Concatenation> ConcatenateSources(
    std::vector<std::shared_ptr<const ByteSource>> parts, std::string name);

// `length` bytes of `parent` from `offset`. Fails with kTruncated past its end.
HAULWAY_EXPORT Result<std::shared_ptr<const ByteSource>> MakeSliceSource(
    std::shared_ptr<const ByteSource> parent, uint64_t offset, uint64_t length);

}  // namespace haulway
