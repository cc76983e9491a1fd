// Design: an archive is compressed in the order of its bytes, straight from the
// memory of its tensor, and its CRC-32 is computed on the way: the frames that
// need it come after the data. Many small items are compressed at once, each by
// one thread, and then written in order. A large item is compressed by several
// threads of libzstd, and written while that goes on.
//
// Alternative not taken: compress everything before anything is written. That
// needs the memory of the whole file.

#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/checked.h"
#include "base/digest.h"
#include "base/no_memory.h"
#include "base/thread_pool.h"
#include "base/zstd.h"
#include "haulway/dcp.h"
#include "haulway/layout.h"
#include "haulway/machine.h"
#include "haulway/sink.h"

namespace haulway {

namespace {

// Items from this size on are compressed by several threads.
constexpr uint64_t kLargeItem = 64 * kMiB;
// Bytes of small items that are compressed at once.
constexpr uint64_t kTogether = 128 * kMiB;
constexpr uint64_t kPiece = 1 * kMiB;

// Compresses one archive.
class ArchiveCompressor {
 public:
  ArchiveCompressor(const Layout& layout, const ZstdEncoder::Emit& emit,
                    const std::atomic<bool>* cancel)
      : layout_(layout), emit_(emit), cancel_(cancel) {}

  Status Run(int workers) {
    if (layout_.digesting() == Digesting::kInOrder) {
      return Status(Code::kUnsupported,
                    "payloads are digested in order: expected CRC-32");
    }
    HAULWAY_ASSIGN(ZstdEncoder encoder,
                   ZstdEncoder::Make(layout_.size(), kFastZstdLevel, workers));
    encoder_ = &encoder;
    crc32_.resize(layout_.payloads().size());
    const auto payloads = layout_.payloads();
    const auto frames = layout_.frames();
    size_t p = 0;
    size_t f = 0;
    while (p < payloads.size() || f < frames.size()) {
      const bool is_payload =
          f == frames.size() ||
          (p < payloads.size() && payloads[p].offset < frames[f].offset);
      if (is_payload) {
        HAULWAY_TRY(AddZeros(payloads[p].offset));
        HAULWAY_TRY(AddPayload(p));
        ++p;
      } else {
        HAULWAY_TRY(AddZeros(frames[f].offset));
        HAULWAY_TRY(AddFrame(f));
        ++f;
      }
    }
    HAULWAY_TRY(AddZeros(layout_.size()));
    return encoder.Finish(emit_);
  }

 private:
  Status Add(std::span<const std::byte> bytes) {
    if (cancel_ != nullptr && cancel_->load()) {
      return Status(Code::kCancelled, "cancelled");
    }
    at_ += bytes.size();
    return encoder_->Add(bytes, emit_);
  }

  Status AddZeros(uint64_t end) {
    const std::vector<std::byte> zeros(std::min(kPiece, end - at_));
    while (at_ < end) {
      HAULWAY_TRY(Add(
          std::span(zeros).first(std::min<uint64_t>(zeros.size(), end - at_))));
    }
    return Status();
  }

  Status AddPayload(size_t p) {
    const Payload& payload = layout_.payloads()[p];
    if (payload.is_hole()) return AddZeros(payload.end());
    std::vector<std::byte> read;
    for (uint64_t done = 0; done < payload.length;) {
      const uint64_t length = std::min(kPiece, payload.length - done);
      std::span<const std::byte> piece;
      if (payload.bytes != nullptr) {
        piece = {payload.bytes + done, length};
      } else {
        read.resize(length);
        HAULWAY_TRY(payload.source->ReadAt(payload.source_offset + done, read));
        piece = read;
      }
      if (layout_.digesting() == Digesting::kCrc32) {
        crc32_[p] = Crc32(crc32_[p], piece);
      }
      HAULWAY_TRY(Add(piece));
      done += length;
    }
    return Status();
  }

  Status AddFrame(size_t f) {
    std::vector<std::byte> frame(layout_.frames()[f].length);
    HAULWAY_TRY(layout_.EncodeFrame(f, {.crc32 = crc32_, .of = {}}, frame));
    return Add(frame);
  }

  const Layout& layout_;
  const ZstdEncoder::Emit& emit_;
  const std::atomic<bool>* const cancel_;
  ZstdEncoder* encoder_ = nullptr;
  uint64_t at_ = 0;
  std::vector<uint32_t> crc32_;  // By payload.
};

class ItemWriter {
 public:
  ItemWriter(std::span<const std::unique_ptr<const Layout>> items,
             ByteSink& sink, const WriteOptions& options)
      : items_(items), sink_(sink), options_(options) {
    for (const auto& item : items_) total_ += item->size();
  }

  Result<std::vector<ByteRange>> Run() {
    HAULWAY_TRY(sink_.Begin(std::nullopt).status());
    for (size_t i = 0; i < items_.size();) {
      if (items_[i]->size() >= kLargeItem) {
        HAULWAY_TRY(WriteLarge(i++));
        continue;
      }
      size_t end = i;
      uint64_t bytes = 0;
      while (end < items_.size() && items_[end]->size() < kLargeItem &&
             bytes < kTogether) {
        bytes += items_[end++]->size();
      }
      HAULWAY_TRY(WriteSmall(i, end));
      i = end;
    }
    HAULWAY_TRY(sink_.Commit(end_));
    return std::move(ranges_);
  }

 private:
  int threads() const {
    return options_.threads > 0 ? options_.threads : UsableCpus();
  }

  Status WriteLarge(size_t i) {
    const uint64_t begin = end_;
    const ZstdEncoder::Emit emit = [&](std::span<const std::byte> bytes) {
      return Append(bytes);
    };
    const int workers = threads() > 1 ? threads() : 0;
    HAULWAY_TRY(
        ArchiveCompressor(*items_[i], emit, options_.cancel).Run(workers));
    Note(i, begin);
    return Status();
  }

  Status WriteSmall(size_t first, size_t end) {
    std::vector<std::vector<std::byte>> made(end - first);
    HAULWAY_TRY(ParallelFor(made.size(), threads(), [&](uint64_t n) -> Status {
      std::vector<std::byte>& bytes = made[n];
      // Weights hardly become smaller; growing would copy them again.
      bytes.reserve(items_[first + n]->size());
      const ZstdEncoder::Emit emit = [&](std::span<const std::byte> piece) {
        bytes.insert(bytes.end(), piece.begin(), piece.end());
        return Status();
      };
      return ArchiveCompressor(*items_[first + n], emit, options_.cancel)
          .Run(0);
    }));
    for (size_t n = 0; n < made.size(); ++n) {
      const uint64_t begin = end_;
      HAULWAY_TRY(Append(made[n]));
      Note(first + n, begin);
    }
    return Status();
  }

  Status Append(std::span<const std::byte> bytes) {
    HAULWAY_TRY(sink_.WriteAt(end_, bytes));
    end_ += bytes.size();
    return Status();
  }

  void Note(size_t i, uint64_t begin) {
    ranges_.push_back({begin, end_ - begin});
    done_ += items_[i]->size();
    if (options_.progress) options_.progress(done_, total_);
  }

  const std::span<const std::unique_ptr<const Layout>> items_;
  ByteSink& sink_;
  const WriteOptions& options_;
  std::vector<ByteRange> ranges_;
  uint64_t end_ = 0;
  uint64_t done_ = 0;
  uint64_t total_ = 0;
};

}  // namespace

Result<std::vector<ByteRange>> WriteCompressed(
    std::span<const std::unique_ptr<const Layout>> items, ByteSink& sink,
    const WriteOptions& options) {
  const std::string name(sink.name());
  auto ranges =
      OrNoMemory([&] { return ItemWriter(items, sink, options).Run(); });
  if (!ranges.ok()) return std::move(ranges).status().Of(name);
  return ranges;
}

}  // namespace haulway
