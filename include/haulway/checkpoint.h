// One interface to checkpoints of every format.
//
// A checkpoint is an index over byte ranges. Opening one reads the index, a
// CheckpointIndex, but no tensor. Tensors are then read one at a time (Read,
// ReadStorage) or many at once (load.h).
//
// Lifetime: everything that an index refers to lives as long as its Checkpoint.
// Threads: a Checkpoint is immutable; use it from any number of threads.

#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string_view>

#include "haulway/buffer.h"
#include "haulway/format.h"
#include "haulway/index.h"
#include "haulway/open.h"
#include "haulway/quantization.h"
#include "haulway/source.h"
#include "haulway/status.h"

namespace haulway {

class HAULWAY_EXPORT Checkpoint {
 public:
  // Reads the index. The format is detected from the bytes, never from the
  // name. Fails as the format's rules say, and as the source does. After
  // kUnavailable or kTimeout opening is repeated up to `retries` times; sources
  // of servers repeat single requests instead, as RemoteOptions::retries says.
  // Opens only those shards of an index that have a name for which `wanted` is
  // true, unless none has.
  static Result<std::shared_ptr<const Checkpoint>> Open(
      std::shared_ptr<const ByteSource> source, const OpenOptions& options = {},
      int retries = kDefaultRetries,
      const std::function<bool(std::string_view name)>& wanted = nullptr);
  // Opens the source that a path or URL names and reads its index; a local file
  // is mapped. See OpenSource(), and OpenSources() for several files as one
  // checkpoint.
  static Result<std::shared_ptr<const Checkpoint>> Open(
      std::string_view uri, const OpenOptions& options = {});

  const CheckpointIndex& index() const { return reader_->index(); }
  const FormatReader& reader() const { return *reader_; }
  const ByteSource& source() const { return *reader_->source(); }

  const LongVector<Entry>& entries() const { return index().entries; }
  // Returns the tensor with this name, or null.
  const TensorInfo* Find(std::string_view name) const;

  // Fails with kUnsupported if the tensor, a row of index().tensors, is a
  // quantized weight whose scales are other tensors of the checkpoint, or is
  // one of these: a cast would change what the numbers mean. The second asks
  // for the tensors of a storage.
  Status CheckCast(uint32_t tensor) const;
  Status CheckCastOfStorage(uint32_t storage) const;

  // Returns what opening with OpenOptions::dequantize did; nothing without it,
  // or if no weight is quantized.
  const std::optional<Dequantized>& dequantized() const HAULWAY_LIFETIME_BOUND;
  // Returns what opening with OpenOptions::lora did.
  const Merged& merged() const HAULWAY_LIFETIME_BOUND;
  // Returns how many tensors OpenOptions::rules made or renamed.
  uint64_t ruled() const;
  // Offsets of source() from here on are of bytes that no file has, those of
  // weights that are computed.
  uint64_t computed_from() const;
  // Returns how the weights are quantized, or were before they were
  // dequantized; nothing if none is and config.json does not say so. Reads
  // config.json beside the file. Fails as reading does, and with kCorrupt if it
  // is no JSON object.
  Result<std::optional<Quantization>> DescribeQuantization() const;

  // Returns a text that is another one if a file that is read has changed since
  // or is another file, and if the checkpoint was opened with other options
  // that change tensors. Opens the other files of a set again, if they are on a
  // server. Fails with kUnsupported if a source cannot tell, such as memory, a
  // pipe, or a directory of torch.distributed.checkpoint; otherwise as opening
  // does.
  Result<std::string> Fingerprint() const;

  // Returns the file that was opened, whose neighbours are those of its folder;
  // source() may be of other files. Null for formats that the caller
  // implements.
  const std::shared_ptr<const ByteSource>& opened() const
      HAULWAY_LIFETIME_BOUND;

  // Copies the elements into `out`, densely and in row-major order. Elements
  // are as stored, in this machine's byte order; the caller applies `conjugate`
  // and `negative`. Requires: out.size() == tensor.nbytes. Fails with
  // kInvalidArgument for a meta tensor, otherwise as reading the source and
  // checking the frame do.
  Status Read(const TensorInfo& tensor, std::span<std::byte> out) const;

  // Reads part of a storage, in this machine's byte order. Fails with
  // kInvalidArgument if the range passes the storage's end or cuts an element
  // that must be byte-swapped, otherwise as reading the source and checking the
  // frame do.
  Status ReadStorageRange(uint32_t storage, uint64_t offset,
                          std::span<std::byte> out) const;

  // Returns all bytes of a storage: a view if the source has them in memory and
  // they need no transformation, otherwise a copy in new memory.
  Result<Buffer> ReadStorage(uint32_t storage) const;

  // Returns how many requests to servers opening took, that of the source
  // included; from the second call on, zeros. The first load calls this, and so
  // its statistics include opening.
  RemoteStats TakeOpeningStats() const;

  // For formats that the caller implements. Requires: the index keeps the
  // promises of index.h.
  explicit Checkpoint(std::unique_ptr<const FormatReader> reader);
  ~Checkpoint();

 private:
  struct State;
  // Fails for FP8 of a model that is declared to be quantized: its scales lie
  // in another file, or are lost.
  Status CheckDeclared(uint32_t tensor) const;
  // Adds the declared method to a refusal.
  Status WithMethod(Status status) const;
  std::unique_ptr<const FormatReader> reader_;
  std::unique_ptr<State> state_;
};

}  // namespace haulway
