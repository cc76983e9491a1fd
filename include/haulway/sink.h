// A ByteSink is a file being written: nothing is visible to others before
// Commit(), and without Commit() no trace of it stays.
//
// Units: offsets and lengths are bytes.
// Threads: WriteAt() may be called from many threads at once unless the sink is
// ordered. Begin() and Commit() must be called by one thread, before and after
// all other calls.

#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "haulway/fields.h"
#include "haulway/source.h"
#include "haulway/status.h"

namespace haulway {

// What a sink needs from its writer.
struct SinkTraits {
  // Each WriteAt() must begin where the previous one ended.
  bool ordered = false;
  // WriteAt() calls run one after the other, so a thread with other work should
  // do that work instead of waiting.
  bool in_turn = false;
  // The best length of a WriteAt() that starts at a multiple of this length.
  uint64_t request_bytes = 1 << 20;
};

class HAULWAY_EXPORT ByteSink {
 public:
  // Discards what was written unless Commit() succeeded.
  virtual ~ByteSink() = default;

  // The destination, for messages. Never contains a credential.
  virtual std::string_view name() const = 0;

  // Must be called once, before anything is written, with the final size if it
  // is known: a lack of space is then found immediately.
  virtual Result<SinkTraits> Begin(std::optional<uint64_t> size) = 0;

  // Writes all `parts`, one after another, from `offset` on, or fails. Bytes
  // below the final size that are never written are zero. After a failure the
  // sink can only be destroyed.
  virtual Status WriteAt(uint64_t offset,
                         std::span<const std::span<const std::byte>> parts) = 0;
  Status WriteAt(uint64_t offset, std::span<const std::byte> bytes) {
    return WriteAt(offset, std::span(&bytes, 1));
  }

  // Writes `length` bytes of another file. The kernel copies the bytes, or
  // shares them if the file system can, without passing them through this
  // process. Fails with kUnsupported, before anything is written, if that is
  // not possible; WriteAt() still works.
  virtual Status CopyAt(uint64_t offset, const FileBytes& from,
                        uint64_t length);

  // How many of the bytes that were written until now bypassed the page cache
  // of this machine.
  virtual uint64_t direct_bytes() const { return 0; }

  // Makes the file visible, `size` bytes long, as durable as was asked for. A
  // failure leaves the old file, if any, unless only its folder is not synced.
  virtual Status Commit(uint64_t size) = 0;

  // Does the part of Commit() that takes long and can fail, such as syncing:
  // afterwards the file only needs to become visible. Optional; for several
  // files that should become visible together.
  virtual Status Prepare(uint64_t size);
};

enum class Durability : uint8_t {
  // The file survives a loss of power once Commit() has returned.
  kFull,
  // The file becomes visible as a whole or not at all, but may be lost if the
  // machine stops.
  kNone,
};

inline constexpr std::string_view kDurabilityWords[] = {"full", "none"};
constexpr std::span<const std::string_view> WordsOf(Durability) {
  return kDurabilityWords;
}

// The option `durability` of every struct that has one.
inline constexpr std::string_view kDurabilityMeaning =
    "'full': the file survives a loss of power; 'none': it appears complete, "
    "but may be lost or incomplete if the machine stops";
constexpr Option DurabilityOption(std::string_view calls) {
  return {.calls = calls,
          .flag = "--no-sync",
          .off_meaning = "do not wait until the file is on the disk"};
}

// What to do if the target's name is already taken.
enum class Existing : uint8_t {
  kUsual,    // Replaces files, objects and plain values; refuses others.
  kReplace,  // Replaces anything.
  kRefuse,   // Fails with kInvalidArgument; the target stays.
};

struct FileSinkOptions {
  Durability durability = Durability::kFull;
  Existing existing = Existing::kUsual;
  // Whether to bypass the page cache (O_DIRECT). By default a durable file of
  // 32 MiB or more does, if the file system supports it.
  std::optional<bool> direct = std::nullopt;
  // Whether only its owner may read a file that replaces no other.
  bool is_private = false;
  // Whether the target is read while the sink is written to: it is never
  // overwritten then, even if no file can be made beside it.
  bool is_read = false;
  // Whether a link to a file, or to nothing, is itself replaced. By default
  // links are followed.
  bool replaces_link = false;
  // If set, receives the temporary name that the file has from Begin() to
  // Commit(), so that others can write to it.
  std::string* temporary = nullptr;
};

inline constexpr FieldTable kFileSinkOptionFields{

    Field("durability", &FileSinkOptions::durability, kDurabilityMeaning,
          DurabilityOption("save put create")),
};
constexpr const auto& FieldsOf(const FileSinkOptions&) {
  return kFileSinkOptionFields;
}

// Opens a local file for writing. It is written beside its target without a
// name (O_TMPFILE, or under a hidden name if the file system has no such files)
// and takes the target's name in one step. So the target is always either the
// old file or the new one, and mappings of the old file stay valid. Symbolic
// links are followed unless `replaces_link` says otherwise; the mode and the
// access control list of an existing file are kept, and its owner and group as
// far as the process may set them. An interrupted run may leave
// ".NAME.PID-NUMBER.haulway-tmp", which the same user's next run removes.
//
// If no file can be made beside the target, or the target's name is a mount
// point, the target itself is overwritten and is not safe from a crash
// meanwhile. The same applies to an open file without a name, which only a path
// like /dev/fd/3 leads to. Devices and pipes are written in order. Fails with
// kNotFound, kPermissionDenied, kUnsupported (a folder) or kIoError.
HAULWAY_EXPORT Result<std::unique_ptr<ByteSink>> OpenFileSink(
    std::string path, const FileSinkOptions& options = {});

// An ordered sink that passes each run of bytes to `write`. `write` does not
// learn of Commit(); the caller must keep incomplete bytes from view.
using WriteFunction = std::function<Status(std::span<const std::byte> bytes)>;
HAULWAY_EXPORT std::unique_ptr<ByteSink> MakeFunctionSink(
    WriteFunction write, std::string name = "stream");

// A sink in memory. Commit() moves the bytes to `*out`, which must outlive the
// sink.
HAULWAY_EXPORT std::unique_ptr<ByteSink> MakeMemorySink(
    std::string* out, std::string name = "memory");

}  // namespace haulway
