// Design: for layouts whose digests can be combined (CRC-32), the file is
// divided into chunks of equal size that threads take in order. Each thread
// digests the parts of payloads in its chunk. A frame that needs a whole
// payload's digest is encoded by the chunk that contains it, which waits until
// all earlier chunks are digested. Small parts are copied together; large ones
// are written in place.
//
// Alternative not taken: one payload per thread, as payload_writer.cc must do,
// leaves one thread alone with the largest. Direct I/O once had a writer of its
// own; now sinks accept writes of any length, so chunks need not know about
// blocks.

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/digest.h"
#include "base/thread_pool.h"
#include "haulway/buffer.h"
#include "haulway/options.h"
#include "save/write_measure.h"
#include "save/writers.h"

namespace haulway {

namespace {

// Smaller payloads are copied together with their neighbours.
constexpr uint64_t kLargePart = 16 * kKiB;
constexpr uint64_t kServerChunk = 16 * kMiB;

// A part of a payload, of a frame, of zeros, or of a payload that the sink has
// copied.
struct ChunkPart {
  enum Kind { kPayload, kFrame, kZeros, kCopied } kind;
  size_t index;
  uint64_t begin;  // Offset in the file.
  uint64_t end;
};

// A CrcTable computes the CRC-32 of every payload from pieces that any thread
// digests, chunk by chunk, in any order.
class CrcTable {
 public:
  CrcTable(size_t payloads, uint64_t chunks)
      : crc32_(payloads), leads_(chunks), done_(chunks) {}

  std::span<const uint32_t> crc32() const { return crc32_; }

  // Stores the CRC-32 of a piece at the beginning of a payload. Only the thread
  // of the chunk that contains the beginning may call this.
  void Start(size_t payload, uint32_t crc) { crc32_[payload] = crc; }
  // Stores the CRC-32 of a piece of a payload that began in an earlier chunk.
  void Continue(uint64_t chunk, size_t payload, uint32_t crc, uint64_t length) {
    leads_[chunk] = {payload, length, crc};
  }
  void Finish(uint64_t chunk) {
    const std::lock_guard lock(mutex_);
    done_[chunk] = true;
    for (; finished_ < done_.size() && done_[finished_]; ++finished_) {
      const Lead& next = leads_[finished_];
      if (next.length == 0) continue;
      crc32_[next.payload] =
          Crc32Join(crc32_[next.payload], next.crc, next.length);
    }
    changed_.notify_all();
  }
  // Blocks until this chunk and all earlier ones are digested. This cannot
  // deadlock: chunks are started in order, and digesting waits for nothing.
  void Wait(uint64_t chunk) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return finished_ > chunk; });
  }

 private:
  // The piece at the beginning of a chunk, of a payload that began earlier.
  struct Lead {
    size_t payload = 0;
    uint64_t length = 0;
    uint32_t crc = 0;
  };
  // Each element belongs to one thread until its chunk is finished.
  std::vector<uint32_t> crc32_;
  std::vector<Lead> leads_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<bool> done_ HAULWAY_GUARDED_BY(mutex_);
  // Number of leading chunks that are all digested.
  uint64_t finished_ HAULWAY_GUARDED_BY(mutex_) = 0;
};

class ChunkWriter {
 public:
  // `options` must come from WithThreads().
  ChunkWriter(const Layout& layout, ByteSink& sink, const SinkTraits& traits,
              const WriteOptions& options)
      : layout_(layout),
        payloads_(layout.payloads()),
        frames_(layout.frames()),
        digests_wanted_(layout.digesting() == Digesting::kCrc32),
        size_(layout.size()),
        sink_(sink),
        traits_(traits),
        options_(options),
        chunk_bytes_(ChunkBytes(payloads_, traits)),
        chunks_((size_ + chunk_bytes_ - 1) / chunk_bytes_),
        digests_(payloads_.size(), chunks_) {}

  Result<WriteStats> Run() {
    stats_.threads = traits_.ordered ? 1 : options_.threads;
    HAULWAY_TRY(ParallelFor(chunks_, stats_.threads,
                            [&](uint64_t chunk) { return Write(chunk); }));
    stats_.requests = requests_.load();
    stats_.digest_seconds = digesting_.seconds();
    return stats_;
  }

 private:
  // Returns the chunk size. A single thread writes to an ordered sink, so its
  // reads from a server must be large enough for several requests in parallel.
  static uint64_t ChunkBytes(std::span<const Payload> payloads,
                             const SinkTraits& traits) {
    const bool asks = std::ranges::any_of(payloads, [](const Payload& one) {
      return one.source != nullptr && one.source->Look({}).is_server();
    });
    return traits.ordered && asks ? std::max(traits.request_bytes, kServerChunk)
                                  : traits.request_bytes;
  }

  // Returns the position of the first of `items` that ends after `offset`.
  template <class Item>
  static size_t FirstAt(std::span<const Item> items, uint64_t offset) {
    return static_cast<size_t>(std::partition_point(items.begin(), items.end(),
                                                    [&](const Item& item) {
                                                      return item.end() <=
                                                             offset;
                                                    }) -
                               items.begin());
  }

  // Returns the parts of the file in [begin, end), in order.
  std::vector<ChunkPart> PartsOf(uint64_t begin, uint64_t end) const {
    std::vector<ChunkPart> parts;
    size_t p = FirstAt(payloads_, begin);
    size_t f = FirstAt(frames_, begin);
    for (uint64_t at = begin; at < end;) {
      while (p < payloads_.size() && payloads_[p].end() <= at) ++p;
      while (f < frames_.size() && frames_[f].end() <= at) ++f;
      const uint64_t payload =
          p < payloads_.size() ? payloads_[p].offset : UINT64_MAX;
      const uint64_t frame =
          f < frames_.size() ? frames_[f].offset : UINT64_MAX;
      ChunkPart part{ChunkPart::kZeros, 0, at, std::min({end, payload, frame})};
      if (frame <= at) {
        part = {ChunkPart::kFrame, f, at, std::min(end, frames_[f].end())};
      } else if (payload <= at) {
        part = {ChunkPart::kPayload, p, at, std::min(end, payloads_[p].end())};
      }
      parts.push_back(part);
      at = part.end;
    }
    return parts;
  }

  Status Write(uint64_t chunk) {
    const uint64_t begin = chunk * chunk_bytes_;
    const uint64_t end = std::min(size_, begin + chunk_bytes_);
    std::vector<ChunkPart> parts = PartsOf(begin, end);
    HAULWAY_TRY(CopyParts(parts));
    auto run = TakeRun();
    const Status pulled =
        run.ok() ? Pull(parts, begin, run->mutable_bytes()) : run.status();
    // Provide the digests even after a failure, because other threads wait for
    // them.
    if (digests_wanted_) {
      Digest(chunk, parts, begin,
             run.ok() ? run->bytes() : std::span<const std::byte>());
    }
    HAULWAY_TRY(pulled);
    if (options_.cancel != nullptr && options_.cancel->load()) {
      return Status(Code::kCancelled, "writing was cancelled");
    }
    HAULWAY_TRY(WriteParts(chunk, parts, begin, run->mutable_bytes()));
    ReturnRun(*std::move(run));
    Advance(end - begin);
    return Status();
  }

  // Lets the sink copy payloads that are stored in a file, if they are not
  // digested here. For an ordered sink, only if there is a single part, because
  // copied parts are written before the others.
  Status CopyParts(std::span<ChunkPart> parts) {
    if (digests_wanted_ || (traits_.ordered && parts.size() > 1)) {
      return Status();
    }
    for (ChunkPart& part : parts) {
      const uint64_t length = part.end - part.begin;
      if (!copies_.load() || part.kind != ChunkPart::kPayload ||
          length < kLargePart) {
        continue;
      }
      const Payload& payload = payloads_[part.index];
      if (payload.bytes != nullptr || payload.source == nullptr) continue;
      const std::optional<FileBytes> from = payload.source->InFile(
          payload.source_offset + part.begin - payload.offset, length);
      if (!from.has_value()) continue;
      requests_.fetch_add(1, std::memory_order_relaxed);
      Status copied = sink_.CopyAt(part.begin, *from, length);
      if (copied.ok()) {
        part.kind = ChunkPart::kCopied;
      } else if (copied.code() == Code::kUnsupported) {
        copies_.store(false);  // It will not copy the next one either.
      } else {
        return copied;
      }
    }
    return Status();
  }

  // Returns the place of a part in the run, which corresponds to the chunk that
  // begins at `begin`.
  static std::span<std::byte> PlaceOf(const ChunkPart& part, uint64_t begin,
                                      std::span<std::byte> run) {
    return run.subspan(part.begin - begin, part.end - part.begin);
  }

  // Reads the parts that come from sources.
  Status Pull(std::span<const ChunkPart> parts, uint64_t begin,
              std::span<std::byte> run) {
    for (const ChunkPart& part : parts) {
      if (part.kind != ChunkPart::kPayload) continue;
      const Payload& payload = payloads_[part.index];
      if (payload.bytes != nullptr || payload.source == nullptr) continue;
      const uint64_t from = part.begin - payload.offset;
      HAULWAY_TRY(payload.source->ReadAt(payload.source_offset + from,
                                         PlaceOf(part, begin, run)));
    }
    return Status();
  }

  // Writes large parts in place, and small parts between them after copying
  // them to the run. Omits zeros if the sink can skip them.
  Status WriteParts(uint64_t chunk, std::span<const ChunkPart> parts,
                    uint64_t begin, std::span<std::byte> run) {
    std::vector<std::span<const std::byte>> pieces;
    uint64_t at = begin;  // File offset of the pieces.
    for (const ChunkPart& part : parts) {
      const std::span<std::byte> out = PlaceOf(part, begin, run);
      const std::byte* from = BytesOf(part, begin, run);
      const bool is_zero = part.kind != ChunkPart::kFrame && from == nullptr;
      if (part.kind == ChunkPart::kCopied || (is_zero && !traits_.ordered)) {
        if (!pieces.empty()) HAULWAY_TRY(Put(at, pieces));
        pieces.clear();
        at = part.end;
        continue;
      }
      if (from != nullptr && from != out.data() && out.size() >= kLargePart) {
        pieces.emplace_back(from, out.size());
        continue;
      }
      if (part.kind == ChunkPart::kFrame) {
        HAULWAY_TRY(EncodeFrame(chunk, part, out));
      } else if (is_zero) {
        std::ranges::fill(out, std::byte{0});
      } else if (from != out.data()) {
        std::copy_n(from, out.size(), out.begin());
      }
      if (!pieces.empty() && pieces.back().data() + pieces.back().size() ==
                                 static_cast<const std::byte*>(out.data())) {
        pieces.back() = {pieces.back().data(),
                         pieces.back().size() + out.size()};
      } else {
        pieces.push_back(out);
      }
    }
    return pieces.empty() ? Status() : Put(at, pieces);
  }

  // Returns the bytes of a payload; null for other parts and for holes.
  const std::byte* BytesOf(const ChunkPart& part, uint64_t begin,
                           std::span<const std::byte> run) const {
    if (part.kind != ChunkPart::kPayload) return nullptr;
    const Payload& payload = payloads_[part.index];
    if (payload.bytes != nullptr) {
      return payload.bytes + (part.begin - payload.offset);
    }
    if (payload.source == nullptr || run.empty()) return nullptr;
    return run.data() + (part.begin - begin);
  }

  Status Put(uint64_t offset,
             std::span<const std::span<const std::byte>> pieces) {
    requests_.fetch_add(1, std::memory_order_relaxed);
    return sink_.WriteAt(offset, pieces);
  }

  void Digest(uint64_t chunk, std::span<const ChunkPart> parts, uint64_t begin,
              std::span<const std::byte> run) {
    digesting_.Measure([&] { DigestParts(chunk, parts, begin, run); });
  }
  void DigestParts(uint64_t chunk, std::span<const ChunkPart> parts,
                   uint64_t begin, std::span<const std::byte> run) {
    for (const ChunkPart& part : parts) {
      const std::byte* from = BytesOf(part, begin, run);
      if (from == nullptr) continue;
      const uint64_t length = part.end - part.begin;
      const uint32_t crc = Crc32(0, std::span<const std::byte>(from, length));
      if (part.begin == payloads_[part.index].offset) {
        digests_.Start(part.index, crc);
      } else {
        digests_.Continue(chunk, part.index, crc, length);
      }
    }
    digests_.Finish(chunk);
  }

  Status EncodeFrame(uint64_t chunk, const ChunkPart& part,
                     std::span<std::byte> out) {
    const Frame& frame = frames_[part.index];
    if (digests_wanted_ && frame.needs != Needs::kNothing) {
      digests_.Wait(chunk);
    }
    const Digests known = {digests_.crc32(), {}};
    if (out.size() == frame.length) {
      return layout_.EncodeFrame(part.index, known, out);
    }
    // The frame crosses chunks: encode it once for all of them.
    const std::lock_guard lock(frames_mutex_);
    std::vector<std::byte>& whole = whole_frames_[part.index];
    if (whole.empty()) {
      whole.resize(frame.length);
      HAULWAY_TRY(layout_.EncodeFrame(part.index, known, whole));
    }
    std::memcpy(out.data(), whole.data() + (part.begin - frame.offset),
                out.size());
    return Status();
  }

  // Returns memory for one chunk. Its content is unspecified.
  Result<Buffer> TakeRun() {
    {
      const std::lock_guard lock(runs_mutex_);
      if (!runs_.empty()) {
        Buffer run = std::move(runs_.back());
        runs_.pop_back();
        return run;
      }
    }
    return AllocateBuffer(std::min(chunk_bytes_, size_));
  }
  void ReturnRun(Buffer run) {
    const std::lock_guard lock(runs_mutex_);
    runs_.push_back(std::move(run));
  }

  void Advance(uint64_t bytes) {
    if (!options_.progress) return;
    const std::lock_guard lock(progress_mutex_);
    done_ += bytes;
    options_.progress(done_, size_);
  }

  const Layout& layout_;
  const std::span<const Payload> payloads_;
  const std::span<const Frame> frames_;
  const bool digests_wanted_;
  const uint64_t size_;
  ByteSink& sink_;
  const SinkTraits traits_;
  const WriteOptions& options_;
  // Size of the unit that one thread digests and writes.
  const uint64_t chunk_bytes_;
  const uint64_t chunks_;
  CrcTable digests_;
  std::atomic<uint64_t> requests_{0};
  std::atomic<bool> copies_{true};  // Whether the sink copies, as far as known.
  WriteStats stats_;

  std::mutex frames_mutex_;
  std::map<size_t, std::vector<std::byte>> whole_frames_;
  std::mutex runs_mutex_;
  std::vector<Buffer> runs_;
  std::mutex progress_mutex_;
  uint64_t done_ = 0;
  WorkTime digesting_;
};

}  // namespace

Result<WriteStats> WriteByChunks(const Layout& layout, ByteSink& sink,
                                 const SinkTraits& traits,
                                 const WriteOptions& options) {
  return ChunkWriter(layout, sink, traits, options).Run();
}

}  // namespace haulway
