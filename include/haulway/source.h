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
#include "haulway/export.h"
#include "haulway/status.h"

namespace haulway {

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
// pages fatal to touch (SIGBUS); OpenFileSource() has no such hazard.
HAULWAY_EXPORT Result<std::shared_ptr<const ByteSource>> OpenMmapSource(
    std::string path);

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
