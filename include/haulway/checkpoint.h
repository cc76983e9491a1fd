// One API over every checkpoint format.
//
// A checkpoint is an index over byte ranges. Opening one reads the index and
// no tensor; what it found is laid out in a CheckpointIndex. Tensors are then
// read one by one (Read, View) or many at once (load.h).
//
// Lifetime: everything an index refers to lives as long as its Checkpoint.
// Threads: a Checkpoint is immutable; use it from any number of threads.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "haulway/buffer.h"
#include "haulway/format.h"
#include "haulway/index.h"
#include "haulway/source.h"
#include "haulway/status.h"

namespace haulway {

class HAULWAY_EXPORT Checkpoint {
 public:
  // Reads the index. Detects the format from the bytes, never from the name.
  // Fails as the format's rules say, and as the source does.
  static Result<std::shared_ptr<const Checkpoint>> Open(
      std::shared_ptr<const ByteSource> source,
      const OpenOptions& options = {});
  // What a name leads to, mapped if it is a file: see OpenSource(), and
  // OpenSources() for several files as one.
  static Result<std::shared_ptr<const Checkpoint>> Open(
      std::string_view uri, const OpenOptions& options = {});

  const CheckpointIndex& index() const { return reader_->index(); }
  const FormatReader& reader() const { return *reader_; }
  const ByteSource& source() const { return *reader_->source(); }

  const LongVector<Entry>& entries() const { return index().entries; }
  // The tensor of that name, or null.
  const TensorInfo* Find(std::string_view name) const;

  // Copies the elements, densely and in row-major order, into `out`. Elements
  // are as stored, in this machine's byte order: conjugate and negative are
  // the caller's to apply. Requires: out.size() == tensor.nbytes. Fails with
  // kInvalidArgument for a meta tensor, else as the source and frame do.
  Status Read(const TensorInfo& tensor, std::span<std::byte> out) const;

  // Part of a storage, in this machine's byte order. Fails with
  // kInvalidArgument past its end or where the range cuts an element that has
  // to be swapped, else as the source and frame do.
  Status ReadStorageRange(uint32_t storage, uint64_t offset,
                          std::span<std::byte> out) const;

  // All bytes of a storage, in place if the source has them in
  // memory and no transform is needed, else read into fresh memory.
  Result<Buffer> ReadStorage(uint32_t storage) const;

  // For formats of one's own. Requires: the index holds what it promises.
  explicit Checkpoint(std::unique_ptr<const FormatReader> reader);
  ~Checkpoint();

 private:
  struct Names;
  std::unique_ptr<const FormatReader> reader_;
  std::unique_ptr<Names> names_;
};

}  // namespace haulway
