// What a format implements, and the table of all formats.
//
// A format is a row: what it is called, how it is known, what it can hold, and
// the functions that do with it all that can be done. Whatever else differs
// between formats is asked of the row, so a new one is a folder and a row.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "haulway/index.h"
#include "haulway/options.h"
#include "haulway/source.h"
#include "haulway/status.h"
#include "haulway/verify.h"

namespace haulway {

// A FormatReader is an open file of one format: its index, and what turns
// stored bytes into the bytes of storages. Used by the engine and by
// Checkpoint.
//
// Threads: every method may be called from many threads at once.
class HAULWAY_EXPORT FormatReader {
 public:
  virtual ~FormatReader() = default;
  virtual const CheckpointIndex& index() const = 0;
  virtual const std::shared_ptr<const ByteSource>& source() const = 0;

  // Checks what surrounds the payload of `storage`: `before` are the bytes
  // from frame_offset to offset, `after` those from the payload's end to
  // frame_end. Fails with kCorrupt if they contradict the index.
  virtual Status CheckFrame(uint32_t storage, std::span<const std::byte> before,
                            std::span<const std::byte> after) const = 0;

  // Turns stored bytes of an encoded storage into its bytes in memory, from
  // stored byte `offset` on: all of them, or whole units (UnitBytes). `frame`
  // is what CheckFrame() took as `before`. Requires: the encoding is kDeflate
  // or kEncrypted; only for the latter may `out` be the stored bytes
  // themselves. Fails with kCorrupt if they do not decode to that, and kAuth
  // if the key is missing or wrong.
  virtual Status Decode(uint32_t storage, std::span<const std::byte> frame,
                        uint64_t offset, std::span<const std::byte> stored,
                        std::span<std::byte> out) const = 0;

  // Of how many bytes, stored and decoded alike, a unit is that is decoded
  // apart from the others; 0: everything is one. Fails as CheckFrame() does.
  virtual Result<uint64_t> UnitBytes(uint32_t storage,
                                     std::span<const std::byte> frame) const;

  // Whether frames hold digests.
  virtual bool has_digests() const { return false; }
  // The digests of the decoded payload in its frame; where there are several,
  // one that matches will do. Fails as CheckFrame() does.
  virtual Result<std::vector<PayloadDigest>> Digests(
      uint32_t storage, std::span<const std::byte> before,
      std::span<const std::byte> after) const;
};

// What files of a format can hold.
struct Capabilities {
  bool encrypt = false;  // Payloads may be encrypted, with a key of the caller.
  bool digests = false;  // There are checksums of payloads.
  bool nested = false;   // An object of dicts and lists, not only names.
  bool views = false;    // Tensors may share storages, and have strides.
  bool metadata = false;  // Text by key beside the tensors,
  bool values = false;    // and numbers, flags and lists.
  // Nothing else than that: no pickles and no code, so that scanning such a
  // file is opening it.
  bool only_data = false;
};

// The first bytes by which every format is known: a block of tar is longest.
inline constexpr size_t kHeadBytes = 512;

class Layout;
struct SaveOptions;
struct TensorsToWrite;

struct FormatEntry {
  Format id;
  std::string_view name;  // As in messages and JSON.
  // How names of such files end, in lower case with the dot; the first is the
  // usual one. Empty for a format that is found under another's names.
  std::span<const std::string_view> suffixes;
  Capabilities can;
  // Whether a file is of this format that begins with `head`, its first
  // kHeadBytes bytes or all of it. Null for a format that is told apart from
  // the one before it only when that is opened.
  bool (*detect)(std::span<const std::byte> head);
  // Asked where another format knows the head as well: whether the content is
  // of this one too. Null: the head says it all.
  bool (*confirm)(const ByteSource& source) = nullptr;
  Result<std::unique_ptr<const FormatReader>> (*open)(
      std::shared_ptr<const ByteSource> source, const OpenOptions& options);
  Result<VerifyReport> (*verify)(std::shared_ptr<const ByteSource> source,
                                 const VerifyOptions& options);
  // How many bytes a file has of which this is the beginning, by what that
  // says; UINT64_MAX where others may follow the tensors. Null where nothing at
  // the beginning tells what there is.
  Result<uint64_t> (*whole_bytes)(const ByteSource& cut,
                                  const ParseLimits& limits) = nullptr;
  // Lays out a file of `tensors`, which outlive the layout and are as LayOut()
  // of save.h hands them over: names differ, bytes match shapes, and no tensor
  // has a view unless the format has them. Null for a format that is only
  // read.
  Result<std::unique_ptr<const Layout>> (*lay_out)(
      const TensorsToWrite& tensors, const SaveOptions& options) = nullptr;
};

// All formats, in the order in which they are tried.
HAULWAY_EXPORT std::span<const FormatEntry> Formats();
HAULWAY_EXPORT const FormatEntry& EntryOf(Format format);
// The spelling in JSON: "torch", "torch-legacy", "torch-tar", "torchscript",
// "torch-package", "tensorizer", "safetensors", "gguf", "npy", "npz".
HAULWAY_EXPORT std::string_view Name(Format format);
// The format whose files have names that end like `path`, upper or lower case;
// null if there is none.
HAULWAY_EXPORT const FormatEntry* FormatBySuffix(std::string_view path);

}  // namespace haulway
