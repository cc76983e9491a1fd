// Items that the extensions of torch's writer transformed: compressed by zstd.
//
// The descriptors, and how a writer applies extensions, are defined by
// torch/distributed/checkpoint/_extension.py and filesystem.py of PyTorch.

#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "haulway/dcp.h"
#include "haulway/options.h"
#include "haulway/source.h"
#include "haulway/status.h"

namespace haulway::dcp {

// Fails with kUnsupported, naming the extension, unless Haulway can undo all
// transforms: any number of `stream.zstd` of version 1, up to a limit.
Status CheckTransforms(std::span<const std::string_view> transforms);

// The most bytes that an item may have after its transforms were undone.
struct MostDecoded {
  uint64_t bytes = 0;
  // Whether this is one of ParseLimits, rather than what the metadata imply.
  bool is_limit = false;
};

// Returns the limit for an archive of one tensor of `nbytes`.
MostDecoded MostOfTensor(uint64_t nbytes);
// Returns the limit for an object, whose size the metadata do not state.
MostDecoded MostOfObject(const StoredItem& item, const ParseLimits& limits);

// An ItemDecoder undoes the transforms of an item from its beginning to its
// end. Its memory is that of the windows that frames state. Threads: one at a
// time.
class ItemDecoder {
 public:
  // Fails with kTruncated if the item ends past the file, and with kLimit if
  // there is no memory.
  static Result<ItemDecoder> Open(std::shared_ptr<const ByteSource> file,
                                  const StoredItem& item, MostDecoded most);
  ItemDecoder(ItemDecoder&&) noexcept;
  ItemDecoder& operator=(ItemDecoder&&) noexcept;
  ~ItemDecoder();

  // Fills `out` with the next bytes. Returns fewer than `out` has only at the
  // end of the item, which was then checked. Fails with kCorrupt for bytes that
  // are no zstd frame or damaged, or if there are more than the limit, with
  // kTruncated if a frame ends early, and as reading does.
  Result<size_t> Read(std::span<std::byte> out);

 private:
  struct Stage;
  ItemDecoder();
  Result<size_t> ReadStored(std::span<std::byte> out);
  Result<size_t> ReadStage(size_t stage, std::span<std::byte> out);
  uint64_t MostOf(size_t stage) const;
  Status TooLong() const;

  std::shared_ptr<const ByteSource> file_;
  uint64_t at_ = 0;   // The next stored byte, in the file.
  uint64_t end_ = 0;  // Where the item ends in the file.
  MostDecoded most_;
  std::vector<std::unique_ptr<Stage>> stages_;  // The outermost one first.
};

// An ItemCursor reads ranges of a decoded item. Reading on from where the last
// read ended costs only the range; reading further back decodes the item anew.
// Bytes that were passed over are kept for a while, because the threads of a
// load ask for the ranges of a tensor in almost their order. Threads: one at a
// time.
class ItemCursor {
 public:
  ItemCursor(std::shared_ptr<const ByteSource> file, const StoredItem& item,
             MostDecoded most)
      : file_(std::move(file)), item_(item), most_(most) {}

  // Returns the first `bytes` of the item, or all there are. Valid until the
  // next call.
  Result<std::span<const std::byte>> Head(size_t bytes);
  // Fills all of `out`. If `keeps`, keeps the bytes between the last read and
  // this one. Fails with kTruncated if the item ends before.
  Status ReadAt(uint64_t offset, std::span<std::byte> out, bool keeps = false);
  // Decodes the rest, and returns the size of the item.
  Result<uint64_t> ReadToEnd();

  // Computes the CRC-32 of a range while it is decoded. Requires: nothing but
  // the head was read.
  void Watch(uint64_t begin, uint64_t bytes);
  // Returns the CRC-32 of the watched range; nullopt if it was not all decoded.
  std::optional<uint32_t> watched_crc32() const;

  // Number of bytes that are kept and that nobody read yet.
  uint64_t kept_bytes() const { return kept_bytes_; }

 private:
  Status Restart();
  Result<size_t> Decode(std::span<std::byte> out);
  Status SkipTo(uint64_t offset, bool keeps);
  void Keep(uint64_t offset, std::vector<std::byte> bytes);
  size_t TakeKept(uint64_t offset, std::span<std::byte> out);

  const std::shared_ptr<const ByteSource> file_;
  const StoredItem item_;
  const MostDecoded most_;
  std::optional<ItemDecoder> decoder_;
  uint64_t position_ = 0;  // Where the decoder is in the decoded item.
  std::vector<std::byte> head_;
  std::map<uint64_t, std::vector<std::byte>> kept_;
  uint64_t kept_bytes_ = 0;
  uint64_t watched_begin_ = 0;
  uint64_t watched_end_ = 0;
  uint32_t crc32_ = 0;
};

// Returns a source of the decoded item, whose size is known: reads the item
// once. Small items stay in memory; others are decoded when they are read.
// `name` is for messages. Fails as ItemDecoder does.
Result<std::shared_ptr<const ByteSource>> DecodeItem(
    std::shared_ptr<const ByteSource> file, const StoredItem& item,
    MostDecoded most, std::string name);

}  // namespace haulway::dcp
