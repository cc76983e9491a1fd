// A ByteSink is a file in the making: nothing of it is visible to others
// before Commit(), and without Commit() no trace of it stays.
//
// Units: offsets and lengths are bytes.
// Threads: WriteAt() may be called from many threads at once unless the sink
// is ordered; Begin() and Commit() from one, before and after all of them.

#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "haulway/source.h"
#include "haulway/status.h"

namespace haulway {

// What a sink asks of its writer.
struct SinkTraits {
  // Every WriteAt() must begin where the one before it ended.
  bool ordered = false;
  // One WriteAt() is done after the other, so that a thread with other work
  // should do that meanwhile.
  bool in_turn = false;
  // Bytes go around the page cache.
  bool direct = false;
  // The best length of a WriteAt(), from a multiple of it on.
  uint64_t request_bytes = 1 << 20;
};

class HAULWAY_EXPORT ByteSink {
 public:
  // Drops what was written unless Commit() succeeded.
  virtual ~ByteSink() = default;

  // Says where the bytes go, for messages. Never contains a credential.
  virtual std::string_view name() const = 0;

  // To be called once, before anything is written, with the final size if it
  // is known: lack of space is then found at once.
  virtual Result<SinkTraits> Begin(std::optional<uint64_t> size) = 0;

  // Writes `parts`, one after another, from `offset`: all or a failure. Bytes
  // below the final size that are never written are zero. After a failure the
  // sink is good for nothing but to be dropped.
  virtual Status WriteAt(uint64_t offset,
                         std::span<const std::span<const std::byte>> parts) = 0;
  Status WriteAt(uint64_t offset, std::span<const std::byte> bytes) {
    return WriteAt(offset, std::span(&bytes, 1));
  }

  // Writes `length` bytes of another file that the kernel copies, or shares
  // where the file system can, so that they do not pass through this process.
  // kUnsupported, before anything is written, where that cannot be: WriteAt()
  // takes them still.
  virtual Status CopyAt(uint64_t offset, const FileBytes& from,
                        uint64_t length);

  // Makes the file visible, `size` bytes long, as durably as the sink was
  // asked to. On failure the old file, if any, is as it was.
  virtual Status Commit(uint64_t size) = 0;
};

enum class Durability : uint8_t {
  // Survives loss of power once Commit() returned.
  kFull,
  // Appears whole or not at all, but may be lost with the machine.
  kNone,
};

// What becomes of what has the target's name already.
enum class Existing : uint8_t {
  kUsual,    // Files, objects and plain values are replaced, all else refused.
  kReplace,  // It is replaced, whatever it is.
  kRefuse,   // kInvalidArgument, and it stays.
};

struct FileSinkOptions {
  Durability durability = Durability::kFull;
  Existing existing = Existing::kUsual;
  // Whether to write around the page cache (O_DIRECT): by default a durable
  // file of 32 MiB or more, where the file system can.
  std::optional<bool> direct = std::nullopt;
  // If set, the file has a name from Begin() on, put here, so that others may
  // write to it until Commit().
  std::string* temporary = nullptr;
};

// A local file. It is written without a name beside its target (O_TMPFILE, or
// under a hidden name where the file system has no such files), then takes
// the target's name in one step, so that the target is at every moment the
// old file or the new one, and mappings of the old one stay intact. Symbolic
// links are followed; an existing file's mode is kept. What an interrupted
// run may leave, ".NAME.PID-NUMBER.haulway-tmp", the same user's next one
// removes.
//
// Where no file can be made beside the target, or the target's name is a
// mount point, the target itself is overwritten and is not safe from a crash
// meanwhile; devices and pipes are written in order. Fails with kNotFound,
// kPermissionDenied, kUnsupported (a folder) or kIoError.
HAULWAY_EXPORT Result<std::unique_ptr<ByteSink>> OpenFileSink(
    std::string path, const FileSinkOptions& options = {});

// An ordered sink: `write` is given each run of bytes in turn. It does not
// know of Commit(): keeping the bytes from view is the caller's.
using WriteFunction = std::function<Status(std::span<const std::byte> bytes)>;
HAULWAY_EXPORT std::unique_ptr<ByteSink> MakeFunctionSink(
    WriteFunction write, std::string name = "stream");

// Commit() moves the bytes to `*out`, which must outlive the sink.
HAULWAY_EXPORT std::unique_ptr<ByteSink> MakeMemorySink(
    std::string* out, std::string name = "memory");

}  // namespace haulway
