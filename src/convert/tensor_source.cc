// Design: two kinds of source provide the bytes of tensors.
//
// A StoredSource serves all tensors whose elements are contiguous in the file,
// as most are. Any range is read, decrypted, byte-swapped and cast on its own,
// by the thread that writes it. The CRC-32s of the pieces are combined, so a
// storage that is written whole is checked on the way.
//
// A BlockSource serves the others: strided tensors, and compressed storages. It
// reads block by block through LoadTensors(), and keeps the last two blocks,
// because writers read neighbouring ranges.
//
// Considered and rejected: load whole tensors into their places in a planned
// file. SHA-256 and MACs need the bytes in order, and only the writer knows the
// order of the file.

#include "convert/tensor_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <limits>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>

#include "base/checked.h"
#include "base/no_memory.h"
#include "decode/encoding_traits.h"
#include "decode/range_decoder.h"
#include "haulway/load.h"
#include "haulway/machine.h"
#include "haulway/signs.h"
#include "tensor/byte_swap.h"
#include "tensor/cast.h"
#include "tensor/strided.h"

namespace haulway::convert {

namespace {

constexpr size_t kBlocksKept = 2;
constexpr uint64_t kHeadKept = 64;
// What a writer of archives reads again of every payload.
constexpr size_t kDescriptorBytes = 8;
// Limit for tensors that repeat their storage, such as a mask that was expanded
// before it was saved. Real ones are smaller.
constexpr uint64_t kMostRepeated = uint64_t{16} << 30;

}  // namespace

// The elements of many runs, one after another. Of each run it keeps little:
// decoders of those that are being read, and the first bytes.
class StoredSource : public ByteSource {
 public:
  // A range of elements of one storage.
  struct Run {
    uint32_t storage = 0;
    DType dtype = DType::kU8;
    DType to = DType::kU8;
    Signs signs;
    uint64_t begin = 0;  // Byte offset in the storage.
    uint64_t count = 0;
  };

  StoredSource(const Checkpoint& from, bool verify)
      : from_(from), verify_(verify) {}

  // Returns where the elements of `run` begin. Not while others read.
  uint64_t Append(const Run& run) {
    Held& held = runs_.emplace_back();
    held.run = run;
    held.at = size_;
    size_ += held.size();
    return held.at;
  }

  std::string_view name() const override { return from_.source().name(); }
  uint64_t size() const override { return size_; }
  Status ReadAt(uint64_t offset, std::span<std::byte> out) const override {
    const auto read = [&]() -> Status {
      if (!RangeFits(offset, out.size(), size_)) {
        return Status(Code::kTruncated, "range ends past the tensor");
      }
      uint64_t at = offset;
      for (std::span<std::byte> rest = out; !rest.empty();) {
        Held& held = At(at);
        const uint64_t from = at - held.at;
        const auto piece = rest.first(static_cast<size_t>(
            std::min<uint64_t>(rest.size(), held.size() - from)));
        HAULWAY_TRY(ReadRun(&held, from, piece));
        rest = rest.subspan(piece.size());
        at += piece.size();
      }
      return Status();
    };
    return OrNoMemory(read).Of(name());
  }
  std::optional<FileBytes> InFile(uint64_t offset,
                                  uint64_t length) const override {
    if (length == 0 || !RangeFits(offset, length, size_)) return std::nullopt;
    // Two threads write several files faster than the kernel copies them: 1.1
    // GiB on ext4, durable, in 0.71 s instead of 0.91 s.
    if (!from_.index().parts.empty()) return std::nullopt;
    Held& held = At(offset);
    const Run& run = held.run;
    if (!IsAsStored(run) || !RangeFits(offset - held.at, length, held.size())) {
      return std::nullopt;
    }
    // If the frame is wrong, reading the bytes reports that.
    const auto decoder = OpenDecoder(held);
    if (!decoder.ok() || (*decoder)->checks()) return std::nullopt;
    return from_.source().InFile(
        StorageOf(run).offset + run.begin + (offset - held.at), length);
  }

 private:
  struct Held {
    Run run;
    uint64_t at = 0;  // Where its elements begin.
    std::array<std::byte, kDescriptorBytes> head{};
    bool has_head = false;

    uint64_t size() const { return run.count * ItemBytes(run.to); }
  };
  struct Reading {
    std::shared_ptr<RangeDecoder> decoder;
    uint64_t read = 0;
  };

  Held& At(uint64_t offset) const {
    return *(std::ranges::upper_bound(runs_, offset, {}, &Held::at) - 1);
  }
  const StorageInfo& StorageOf(const Run& run) const {
    return from_.index().storages[run.storage];
  }
  bool IsAsStored(const Run& run) const {
    return IsAsInMemory(StorageOf(run)) && run.dtype == run.to &&
           !run.signs.any();
  }

  Status ReadRun(Held* held, uint64_t offset, std::span<std::byte> out) const {
    if (TakeHead(*held, offset, out)) return Status();
    const Run& run = held->run;
    HAULWAY_ASSIGN(const std::shared_ptr<RangeDecoder> decoder,
                   OpenDecoder(*held));
    if (!IsAsStored(run)) {
      HAULWAY_TRY(ReadElements(run, offset, out, decoder.get()));
    } else {
      HAULWAY_TRY(from_.source().ReadAt(
          StorageOf(run).offset + run.begin + offset, out));
      HAULWAY_TRY(decoder->Note(offset, out));
    }
    NoteRead(held, offset, out);
    return Status();
  }

  // Fills `out` from the first bytes, for writers that read them again after
  // all bytes.
  bool TakeHead(const Held& held, uint64_t offset,
                std::span<std::byte> out) const {
    const std::lock_guard lock(mutex_);
    if (!held.has_head || !RangeFits(offset, out.size(), held.head.size())) {
      return false;
    }
    std::copy_n(held.head.begin() + static_cast<ptrdiff_t>(offset), out.size(),
                out.begin());
    return true;
  }

  // Keeps the head, and frees the decoder once all bytes were read.
  void NoteRead(Held* held, uint64_t offset,
                std::span<const std::byte> bytes) const {
    const std::lock_guard lock(mutex_);
    if (offset == 0 && bytes.size() >= held->head.size()) {
      std::copy_n(bytes.begin(), held->head.size(), held->head.begin());
      held->has_head = true;
    }
    const auto reading = readings_.find(held->at);
    if (reading == readings_.end()) return;
    reading->second.read += bytes.size();
    if (reading->second.read >= held->size() &&
        reading->second.decoder->is_done()) {
      readings_.erase(reading);
    }
  }

  // Returns the decoder. If there is none, first reads and checks the frame
  // with its digests.
  Result<std::shared_ptr<RangeDecoder>> OpenDecoder(const Held& held) const {
    {
      const std::lock_guard lock(mutex_);
      const auto reading = readings_.find(held.at);
      if (reading != readings_.end()) return reading->second.decoder;
    }
    const Run& run = held.run;
    const StorageInfo& info = StorageOf(run);
    const uint64_t end = info.offset + info.stored_bytes;
    std::vector<std::byte> before(info.offset - info.frame_offset);
    std::vector<std::byte> after(info.frame_end - end);
    const ReadRequest requests[] = {{info.frame_offset, before}, {end, after}};
    HAULWAY_TRY(from_.source().ReadMany(requests));
    const bool is_whole =
        run.begin == 0 && run.count * ItemBytes(run.dtype) == info.nbytes;
    HAULWAY_ASSIGN(
        std::shared_ptr<RangeDecoder> decoder,
        RangeDecoder::Open(from_.reader(), run.storage, verify_ && is_whole,
                           std::move(before), after));
    const std::lock_guard lock(mutex_);
    // Another thread may have been faster.
    return readings_.try_emplace(held.at, Reading{std::move(decoder)})
        .first->second.decoder;
  }

  Status ReadElements(const Run& run, uint64_t offset, std::span<std::byte> out,
                      RangeDecoder* decoder) const {
    const uint64_t item = ItemBytes(run.dtype);
    const uint64_t to_item = ItemBytes(run.to);
    const uint64_t end = offset + out.size();
    const uint64_t first = offset / to_item;
    const uint64_t last = (end + to_item - 1) / to_item;
    const uint64_t bytes = (last - first) * item;
    const auto memory = std::make_unique_for_overwrite<std::byte[]>(bytes);
    const std::span<std::byte> stored(memory.get(), bytes);
    HAULWAY_TRY(ReadStored(run, run.begin + first * item, stored, *decoder));
    // A piece counts the elements that begin in it.
    const uint64_t own = (offset + to_item - 1) / to_item;
    HAULWAY_TRY(
        decoder->Note(own * item, stored.subspan((own - first) * item)));
    SwapBytes(stored, StorageOf(run).swap_bytes);
    ResolveSigns(run.signs, run.dtype, stored);
    const uint64_t skipped = offset - first * to_item;
    if (run.dtype == run.to) {
      std::memcpy(out.data(), stored.data() + skipped, out.size());
      return Status();
    }
    if (skipped == 0 && out.size() == (last - first) * to_item) {
      CastElements(stored.data(), run.dtype, out.data(), run.to, last - first);
      return Status();
    }
    std::vector<std::byte> cast((last - first) * to_item);
    CastElements(stored.data(), run.dtype, cast.data(), run.to, last - first);
    std::memcpy(out.data(), cast.data() + skipped, out.size());
    return Status();
  }

  // Reads bytes of the storage, decoded but in stored byte order.
  Status ReadStored(const Run& run, uint64_t begin, std::span<std::byte> out,
                    const RangeDecoder& decoder) const {
    const uint64_t start = StorageOf(run).offset;
    const auto [first, length] = decoder.UnitsOf(begin, out.size());
    if (first == begin && length == out.size()) {
      HAULWAY_TRY(from_.source().ReadAt(start + first, out));
      return decoder.Decode(first, out);
    }
    std::vector<std::byte> units(length);
    HAULWAY_TRY(from_.source().ReadAt(start + first, units));
    HAULWAY_TRY(decoder.Decode(first, units));
    std::memcpy(out.data(), units.data() + (begin - first), out.size());
    return Status();
  }

  const Checkpoint& from_;
  const bool verify_;
  mutable LongVector<Held> runs_;
  uint64_t size_ = 0;
  mutable std::mutex mutex_;
  // By where the run begins.
  mutable std::unordered_map<uint64_t, Reading> readings_
      HAULWAY_GUARDED_BY(mutex_);
};

namespace {

class BlockSource : public ByteSource {
 public:
  // `slices` of the request apply to the dimensions of `shape`.
  BlockSource(const Checkpoint& from, TensorRequest request,
              std::vector<int64_t> shape, DType dtype, DType to, Signs signs,
              uint64_t block_bytes, const SourceOptions& options)
      : from_(from),
        request_(std::move(request)),
        shape_(std::move(shape)),
        // Not every dtype can be negated after a cast to it.
        loaded_(signs.any() ? dtype : to),
        to_(to),
        signs_(signs),
        options_(options),
        bytes_(*CountElements(shape_) * ItemBytes(to)) {
    inner_ = ItemBytes(to);
    for (size_t i = shape_.size(); i-- > 0;) {
      const auto size = static_cast<uint64_t>(shape_[i]);
      dim_ = i;
      rows_ =
          std::max<uint64_t>(1, block_bytes / std::max<uint64_t>(1, inner_));
      if (rows_ < size) break;
      rows_ = std::max<uint64_t>(1, size);
      if (i != 0) inner_ *= size;
    }
    is_whole_ = shape_.empty() || (dim_ == 0 && rows_ >= Size(0));
  }

  std::string_view name() const override { return from_.source().name(); }
  uint64_t size() const override { return bytes_; }
  Status ReadAt(uint64_t offset, std::span<std::byte> out) const override {
    const auto read = [&]() -> Status {
      if (!RangeFits(offset, out.size(), bytes_)) {
        return Status(Code::kTruncated, "range ends past the tensor");
      }
      if (TakeHead(offset, out)) return Status();
      uint64_t at = offset;
      for (std::span<std::byte> rest = out; !rest.empty();) {
        HAULWAY_ASSIGN(const Block block, Find(at));
        const uint64_t from = at - block.offset;
        const uint64_t take =
            std::min<uint64_t>(rest.size(), block.bytes.size() - from);
        std::memcpy(rest.data(), block.bytes.data() + from, take);
        rest = rest.subspan(take);
        at += take;
      }
      return LetGo(out.size());
    };
    return OrNoMemory(read).Of(name());
  }

 private:
  struct Block {
    uint64_t offset = 0;
    Buffer bytes;
  };

  uint64_t Size(size_t dim) const { return static_cast<uint64_t>(shape_[dim]); }

  // Fills `out` from the kept start of the tensor, for writers that read the
  // first bytes of a payload again.
  bool TakeHead(uint64_t offset, std::span<std::byte> out) const {
    const std::lock_guard lock(mutex_);
    if (!blocks_.empty() || offset + out.size() > head_.size()) return false;
    std::copy_n(head_.begin() + static_cast<ptrdiff_t>(offset), out.size(),
                out.begin());
    return true;
  }

  // Returns the block that contains byte `at`.
  Result<Block> Find(uint64_t at) const {
    const std::lock_guard lock(mutex_);
    for (const Block& block : blocks_) {
      if (at >= block.offset && at < block.offset + block.bytes.size()) {
        return block;
      }
    }
    HAULWAY_ASSIGN(Block block, Load(at));
    if (block.offset == 0) {
      const auto head = block.bytes.bytes().first(
          std::min<uint64_t>(kHeadKept, block.bytes.size()));
      head_.assign(head.begin(), head.end());
    }
    blocks_.push_back(block);
    if (blocks_.size() > kBlocksKept) blocks_.pop_front();
    return block;
  }

  // Frees the blocks once all bytes were read, because writers read them only
  // once.
  Status LetGo(uint64_t bytes) const {
    const std::lock_guard lock(mutex_);
    read_ += bytes;
    if (read_ >= bytes_) blocks_.clear();
    return Status();
  }

  Result<Block> Load(uint64_t at) const {
    Block block;
    uint64_t length = bytes_;
    TensorRequest request = request_;
    request.dtype = loaded_;
    if (!is_whole_) {
      const uint64_t row = at / inner_;  // Row number over all of dim_.
      const uint64_t outer = row / Size(dim_);
      const uint64_t first = row % Size(dim_) / rows_ * rows_;
      const uint64_t count = std::min(rows_, Size(dim_) - first);
      block.offset = (outer * Size(dim_) + first) * inner_;
      length = count * inner_;
      request.slice.resize(shape_.size());
      uint64_t rest = outer;
      for (size_t i = shape_.size(); i-- > 0;) {
        auto begin = int64_t{0};
        int64_t end = shape_[i];
        if (i == dim_) {
          begin = static_cast<int64_t>(first);
          end = begin + static_cast<int64_t>(count);
        } else if (i < dim_) {
          begin = static_cast<int64_t>(rest % Size(i));
          end = begin + 1;
          rest /= Size(i);
        }
        request.slice[i] = {begin, end, 1};
      }
    }
    const uint64_t count = length / ItemBytes(to_);
    HAULWAY_ASSIGN(block.bytes,
                   options_.memory.Take(count * ItemBytes(loaded_)));
    request.out = block.bytes.mutable_bytes();
    LoadOptions load;
    load.threads = options_.threads;
    load.verify = options_.verify && is_whole_;
    load.cancel = options_.cancel;
    load.memory_budget = options_.block_bytes;
    HAULWAY_TRY(LoadTensors(from_, std::span(&request, 1), load).status());
    ResolveSigns(signs_, loaded_, block.bytes.mutable_bytes());
    if (loaded_ == to_) return block;
    const Buffer loaded = std::move(block.bytes);
    HAULWAY_ASSIGN(block.bytes, options_.memory.Take(length));
    CastElements(loaded.data(), loaded_, block.bytes.mutable_bytes().data(),
                 to_, count);
    return block;
  }

  const Checkpoint& from_;
  const TensorRequest request_;
  const std::vector<int64_t> shape_;
  const DType loaded_;  // Dtype of the elements while signs are resolved.
  const DType to_;
  const Signs signs_;
  const SourceOptions options_;
  const uint64_t bytes_;
  // A block is rows_ rows of dimension dim_, of inner_ bytes each.
  size_t dim_ = 0;
  uint64_t rows_ = 1;
  uint64_t inner_ = 1;
  bool is_whole_ = false;
  mutable std::mutex mutex_;
  mutable std::list<Block> blocks_ HAULWAY_GUARDED_BY(mutex_);
  mutable uint64_t read_ HAULWAY_GUARDED_BY(mutex_) = 0;
  mutable std::vector<std::byte> head_ HAULWAY_GUARDED_BY(mutex_);
};

BytesToWrite BytesOf(std::shared_ptr<const ByteSource> source) {
  BytesToWrite bytes;
  bytes.length = source->size();
  bytes.source = std::move(source);
  return bytes;
}

// Compressed bytes can be read only from their start.
uint64_t BlockBytes(const StorageInfo& storage, const SourceOptions& options) {
  return TraitsOf(storage).is_apart ? std::numeric_limits<uint64_t>::max()
                                    : options.block_bytes;
}

}  // namespace

int ThreadsOf(int asked) { return asked == 0 ? UsableCpus() : asked; }

uint64_t BlockBytesFor(uint64_t memory_budget, int threads) {
  return std::clamp(memory_budget / 8 / static_cast<uint64_t>(threads), kMiB,
                    32 * kMiB);
}

SourceOptions SourceOptionsFor(const WriteOptions& write, bool verify) {
  SourceOptions options;
  options.threads = ThreadsOf(write.threads);
  options.block_bytes = BlockBytesFor(write.memory_budget, options.threads);
  options.verify = verify;
  options.cancel = write.cancel;
  return options;
}

Status CheckElements(const CheckpointIndex& index, const TensorInfo& tensor) {
  if (SignsOf(tensor).any() && !HasSigns(tensor.dtype)) {
    return Status(
        Code::kUnsupported,
        fmt::format("cannot resolve the sign of dtype {}", Name(tensor.dtype)));
  }
  if (tensor.nbytes == 0 || tensor.storage == kNoStorage) return Status();
  const uint64_t stored = index.storages[tensor.storage].nbytes;
  if (tensor.nbytes <= stored || tensor.nbytes - stored <= kMostRepeated) {
    return Status();
  }
  return Status(Code::kLimit,
                fmt::format("tensor of {} bytes repeats a storage of {}",
                            tensor.nbytes, stored));
}

ElementSources::ElementSources(const Checkpoint& from,
                               const SourceOptions& options)
    : from_(from),
      options_(options),
      stored_(std::make_shared<StoredSource>(from, options.verify)) {}

BytesToWrite ElementSources::Of(uint32_t tensor, DType to) {
  const TensorInfo& info = from_.index().tensors[tensor];
  if (info.nbytes == 0) return BytesToWrite();
  const StorageInfo& storage = from_.index().storages[info.storage];
  const Signs signs = SignsOf(info);
  const uint64_t item = ItemBytes(info.dtype);
  if (RangeDecoder::Takes(storage) && IsContiguous(info.shape, info.strides)) {
    const StoredSource::Run run = {.storage = info.storage,
                                   .dtype = info.dtype,
                                   .to = to,
                                   .signs = signs,
                                   .begin = info.storage_offset * item,
                                   .count = info.nbytes / item};
    return {.length = run.count * ItemBytes(to),
            .source = stored_,
            .source_offset = stored_->Append(run)};
  }
  TensorRequest request;
  request.tensor = tensor;
  return BytesOf(std::make_shared<const BlockSource>(
      from_, std::move(request),
      std::vector<int64_t>(info.shape.begin(), info.shape.end()), info.dtype,
      to, signs, BlockBytes(storage, options_), options_));
}

BytesToWrite ElementSources::OfStorage(uint32_t storage, DType dtype,
                                       uint64_t begin, uint64_t end, DType to) {
  if (begin == end) return BytesToWrite();
  const StorageInfo& info = from_.index().storages[storage];
  if (RangeDecoder::Takes(info)) {
    const StoredSource::Run run = {.storage = storage,
                                   .dtype = dtype,
                                   .to = to,
                                   .signs = {},
                                   .begin = begin * ItemBytes(dtype),
                                   .count = end - begin};
    return {.length = run.count * ItemBytes(to),
            .source = stored_,
            .source_offset = stored_->Append(run)};
  }
  TensorRequest request;
  request.storage = StorageElements{storage, dtype};
  const auto all = static_cast<int64_t>(info.nbytes / ItemBytes(dtype));
  BytesToWrite bytes = BytesOf(std::make_shared<const BlockSource>(
      from_, std::move(request), std::vector<int64_t>{all}, dtype, to, Signs(),
      BlockBytes(info, options_), options_));
  bytes.source_offset = begin * ItemBytes(to);
  bytes.length = (end - begin) * ItemBytes(to);
  return bytes;
}

BytesToWrite ElementsOf(const Checkpoint& from, uint32_t tensor, DType to,
                        const SourceOptions& options) {
  return ElementSources(from, options).Of(tensor, to);
}

Status CheckStorages(const Checkpoint& from, std::span<const uint32_t> storages,
                     const SourceOptions& options) {
  std::vector<uint32_t> with_digests;
  for (const uint32_t row : storages) {
    if (from.index().storages[row].crc32.has_value() ||
        from.reader().has_digests()) {
      with_digests.push_back(row);
    }
  }
  if (with_digests.empty()) return Status();
  LoadOptions load;
  load.threads = options.threads;
  load.verify = true;
  load.cancel = options.cancel;
  load.memory_budget = 4 * options.block_bytes;
  return LoadPieces(from, with_digests, load, options.block_bytes,
                    [](const Piece&) { return Status(); })
      .status();
}

}  // namespace haulway::convert
