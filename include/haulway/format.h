// The interface that a format implements, and the table of all formats.
//
// A format is a row of the table: its name, how it is detected, what it can
// hold, and the functions that open, verify and write it. All code that depends
// on the format asks the row, so a new format is a folder and a row.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "haulway/index.h"
#include "haulway/options.h"
#include "haulway/source.h"
#include "haulway/status.h"
#include "haulway/verify.h"

namespace haulway {

// A FormatReader is an open file of one format: its index, and the functions
// that turn stored bytes into the bytes of storages. Used by the engine and by
// Checkpoint.
//
// Threads: every method may be called from many threads at once.
class HAULWAY_EXPORT FormatReader {
 public:
  virtual ~FormatReader() = default;
  virtual const CheckpointIndex& index() const = 0;
  virtual const std::shared_ptr<const ByteSource>& source() const = 0;

  // Checks what surrounds the payload of `storage`. `before` holds the bytes
  // from frame_offset to offset, `after` those from the payload's end to
  // frame_end. Fails with kCorrupt if they contradict the index.
  virtual Status CheckFrame(uint32_t storage, std::span<const std::byte> before,
                            std::span<const std::byte> after) const = 0;

  // Decodes stored bytes of an encoded storage, starting at stored byte
  // `offset`: all of them, or whole units (see UnitBytes). `frame` is what
  // CheckFrame() takes as `before`. Requires: the encoding is kDeflate,
  // kEncrypted or kDelta; `out` may be the stored bytes themselves for the last
  // two. Fails with kCorrupt if the bytes cannot be decoded, with kMismatch if
  // their checksum differs, and with kAuth if the key is missing or wrong.
  virtual Status Decode(uint32_t storage, std::span<const std::byte> frame,
                        uint64_t offset, std::span<const std::byte> stored,
                        std::span<std::byte> out) const = 0;

  // Returns the size of a unit that can be decoded independently of the others,
  // the same stored and decoded; 0 if the storage must be decoded as a whole.
  // Fails as CheckFrame() does.
  virtual Result<uint64_t> UnitBytes(uint32_t storage,
                                     std::span<const std::byte> frame) const;

  // Returns whether frames hold digests.
  virtual bool has_digests() const { return false; }
  // Returns the digests of the decoded payload that its frame holds. If there
  // are several, one match is enough. Fails as CheckFrame() does.
  virtual Result<std::vector<PayloadDigest>> Digests(
      uint32_t storage, std::span<const std::byte> before,
      std::span<const std::byte> after) const;
};

// What a file of a format can hold.
struct Capabilities {
  bool encrypt = false;   // Payloads can be encrypted with a key of the caller.
  bool digests = false;   // Payloads have checksums.
  bool nested = false;    // An object of dicts and lists, not only names.
  bool views = false;     // Tensors can share storages and have strides.
  bool no_data = false;   // Tensors can lack data (meta tensors).
  bool metadata = false;  // Text by key beside the tensors,
  bool values = false;    // and numbers, flags and lists.
  // A file holds nothing else: no pickles and no code. Scanning such a file
  // means opening it.
  bool only_data = false;
};

// Number of leading bytes that is enough to detect every format; a block of tar
// is the longest.
inline constexpr size_t kHeadBytes = 512;

// The place of a file in a checkpoint of several files.
struct FilePlace {
  uint64_t number = 0;  // From 0 on.
  uint64_t count = 0;   // How many files there are.
  // How many tensors all files hold. Files may omit it.
  std::optional<uint64_t> tensors = std::nullopt;
};

// What a format has whose files state in their metadata which of the files of a
// checkpoint they are.
struct PlaceFunctions {
  // Returns the place that `metadata` states; nullopt for a whole checkpoint.
  std::optional<FilePlace> (*get)(std::span<const Fact> metadata);
  // Replaces the place in `metadata`.
  void (*set)(const FilePlace& place, std::vector<Fact>* metadata);
  // Returns whether a key of the metadata states the place.
  bool (*is_key)(std::string_view key);
};

class Layout;
struct SaveOptions;
struct TensorsToWrite;

struct FormatEntry {
  Format id;
  std::string_view name;  // As in messages and JSON.
  // File name suffixes in lower case, with the dot; the first is the usual one.
  // Empty for a format that shares the suffixes of another one.
  std::span<const std::string_view> suffixes;
  Capabilities can;
  // Returns whether a file that begins with `head` is of this format. `head`
  // holds the first kHeadBytes bytes, or the whole file if it is shorter. Null
  // if the format shares its signature with the previous row and is recognised
  // only after opening.
  bool (*detect)(std::span<const std::byte> head);
  // Called if another format accepts the same head: returns whether the content
  // is of this format. Null if the head is enough.
  bool (*confirm)(const ByteSource& source) = nullptr;
  Result<std::unique_ptr<const FormatReader>> (*open)(
      std::shared_ptr<const ByteSource> source, const OpenOptions& options);
  Result<VerifyReport> (*verify)(std::shared_ptr<const ByteSource> source,
                                 const VerifyOptions& options);
  // Returns how many bytes the whole file has, given its beginning; UINT64_MAX
  // if more may follow the tensors. Null if the beginning does not tell.
  Result<uint64_t> (*whole_bytes)(const ByteSource& cut,
                                  const ParseLimits& limits) = nullptr;
  // Lays out a file of `tensors`, which are checked as by LayOut() of save.h:
  // names differ, sizes match shapes, and no tensor has a view unless the
  // format supports views. The layout may refer to the bytes of tensors and
  // storages and to their sources, but to nothing else. Null for a read-only
  // format.
  Result<std::unique_ptr<const Layout>> (*lay_out)(
      const TensorsToWrite& tensors, const SaveOptions& options) = nullptr;
  // Null if files do not state their place.
  const PlaceFunctions* place = nullptr;
  // Which of the options of OpenOptions that only some formats have this one
  // takes: "part", "weights", "replicas", "split_layers".
  std::span<const std::string_view> takes = {};
};

// All formats, in the order in which they are tried.
HAULWAY_EXPORT std::span<const FormatEntry> Formats();
HAULWAY_EXPORT const FormatEntry& EntryOf(Format format);
// Fails with kInvalidArgument if an option is given that only other formats
// take, and names them.
HAULWAY_EXPORT Status CheckTaken(const FormatEntry& format,
                                 const OpenOptions& options);
// Returns the spelling in JSON: "torch", "torch-legacy", "torch-tar",
// "torchscript", "torch-package", "torch-dcp", "tensorizer", "safetensors",
// "safetensors-dcp", "safetensors-delta", "torch-ranks", "deepspeed", "gguf",
// "npy", "npz".
HAULWAY_EXPORT std::string_view Name(Format format);
// Returns the format with a suffix that `path` ends in, regardless of case;
// null if there is none.
HAULWAY_EXPORT const FormatEntry* FormatBySuffix(std::string_view path);

}  // namespace haulway
