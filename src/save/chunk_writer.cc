// How: for layouts whose digests can be joined (CRC-32) the file is cut into
// chunks of equal size that threads take in order; each digests what of
// payloads lies in its chunk, and frames that need a whole payload's digest are
// encoded by the chunk in which they stand, which waits until all before it are
// digested. Small parts are copied into one run; large ones are written from
// where they are.
//
// A payload to a thread, as payload_writer.cc must have it, leaves one thread
// alone with the largest. A writer of its own for what goes around the page
// cache was here once; since sinks take writes of any length, chunks know
// nothing of blocks.

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

// Payloads below this are copied into one run with their neighbours.
constexpr uint64_t kLargePart = 16 * kKiB;
constexpr uint64_t kServerChunk = 16 * kMiB;

// A part of a payload, of a frame, of what is zero, or of a payload that the
// sink has copied.
struct Part {
  enum Kind { kPayload, kFrame, kZeros, kCopied } kind;
  size_t index;
  uint64_t begin;  // In the file.
  uint64_t end;
};

// A CrcTable fills in the CRC-32 of every payload while its pieces are
// digested chunk by chunk, on any thread in any order.
class CrcTable {
 public:
  CrcTable(size_t payloads, uint64_t chunks)
      : crc32_(payloads), leads_(chunks), done_(chunks) {}

  std::span<const uint32_t> crc32() const { return crc32_; }

  // The payload begins in the chunk at hand, whose thread alone may call this.
  void Start(size_t payload, uint32_t crc) { crc32_[payload] = crc; }
  // It began before.
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
  // Blocks until this chunk and all before it are digested. No deadlock:
  // chunks are begun in order, and digesting waits for nothing.
  void Wait(uint64_t chunk) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return finished_ > chunk; });
  }

 private:
  // What a chunk begins with of a payload that began before it.
  struct Lead {
    size_t payload = 0;
    uint64_t length = 0;
    uint32_t crc = 0;
  };
  // Each element is one thread's until its chunk is finished.
  std::vector<uint32_t> crc32_;
  std::vector<Lead> leads_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<bool> done_ HAULWAY_GUARDED_BY(mutex_);
  // Chunks digested without one missing.
  uint64_t finished_ HAULWAY_GUARDED_BY(mutex_) = 0;
};

class ChunkWriter {
 public:
  // `options` are those of WithThreads().
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
  // One thread asks for all that goes to an ordered sink: of a server for so
  // much that several requests are on their way.
  static uint64_t ChunkBytes(std::span<const Payload> payloads,
                             const SinkTraits& traits) {
    const bool asks = std::ranges::any_of(payloads, [](const Payload& one) {
      return one.source != nullptr && one.source->Look({}).is_server();
    });
    return traits.ordered && asks ? std::max(traits.request_bytes, kServerChunk)
                                  : traits.request_bytes;
  }

  // The first of `items` that does not end before `offset`.
  template <class Item>
  static size_t FirstAt(std::span<const Item> items, uint64_t offset) {
    return static_cast<size_t>(std::partition_point(items.begin(), items.end(),
                                                    [&](const Item& item) {
                                                      return item.end() <=
                                                             offset;
                                                    }) -
                               items.begin());
  }

  // What of the file lies in [begin, end), in order.
  std::vector<Part> PartsOf(uint64_t begin, uint64_t end) const {
    std::vector<Part> parts;
    size_t p = FirstAt(payloads_, begin);
    size_t f = FirstAt(frames_, begin);
    for (uint64_t at = begin; at < end;) {
      while (p < payloads_.size() && payloads_[p].end() <= at) ++p;
      while (f < frames_.size() && frames_[f].end() <= at) ++f;
      const uint64_t payload =
          p < payloads_.size() ? payloads_[p].offset : UINT64_MAX;
      const uint64_t frame =
          f < frames_.size() ? frames_[f].offset : UINT64_MAX;
      Part part{Part::kZeros, 0, at, std::min({end, payload, frame})};
      if (frame <= at) {
        part = {Part::kFrame, f, at, std::min(end, frames_[f].end())};
      } else if (payload <= at) {
        part = {Part::kPayload, p, at, std::min(end, payloads_[p].end())};
      }
      parts.push_back(part);
      at = part.end;
    }
    return parts;
  }

  Status Write(uint64_t chunk) {
    const uint64_t begin = chunk * chunk_bytes_;
    const uint64_t end = std::min(size_, begin + chunk_bytes_);
    std::vector<Part> parts = PartsOf(begin, end);
    HAULWAY_TRY(CopyParts(parts));
    auto run = TakeRun();
    const Status pulled =
        run.ok() ? Pull(parts, begin, run->mutable_bytes()) : run.status();
    // Others wait for the digests, come what may.
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

  // Has the sink copy what lies in a file as it is, if nobody digests it here.
  // If there are several parts, a part that is copied is written before the
  // others.
  Status CopyParts(std::span<Part> parts) {
    if (digests_wanted_ || (traits_.ordered && parts.size() > 1)) {
      return Status();
    }
    for (Part& part : parts) {
      const uint64_t length = part.end - part.begin;
      if (!copies_.load() || part.kind != Part::kPayload ||
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
        part.kind = Part::kCopied;
      } else if (copied.code() == Code::kUnsupported) {
        copies_.store(false);  // Nor will it copy the next.
      } else {
        return copied;
      }
    }
    return Status();
  }

  // What is not the caller's memory stands in the run where it does in the
  // chunk, which begins at `begin`.
  static std::span<std::byte> PlaceOf(const Part& part, uint64_t begin,
                                      std::span<std::byte> run) {
    return run.subspan(part.begin - begin, part.end - part.begin);
  }

  // Reads what comes from sources.
  Status Pull(std::span<const Part> parts, uint64_t begin,
              std::span<std::byte> run) {
    for (const Part& part : parts) {
      if (part.kind != Part::kPayload) continue;
      const Payload& payload = payloads_[part.index];
      if (payload.bytes != nullptr || payload.source == nullptr) continue;
      const uint64_t from = part.begin - payload.offset;
      HAULWAY_TRY(payload.source->ReadAt(payload.source_offset + from,
                                         PlaceOf(part, begin, run)));
    }
    return Status();
  }

  // Writes large parts from where they are, and what is small between them
  // from the run, into which it is copied. What is zero is left out, where the
  // sink may skip it.
  Status WriteParts(uint64_t chunk, std::span<const Part> parts, uint64_t begin,
                    std::span<std::byte> run) {
    std::vector<std::span<const std::byte>> pieces;
    uint64_t at = begin;  // Where the pieces go.
    for (const Part& part : parts) {
      const std::span<std::byte> out = PlaceOf(part, begin, run);
      const std::byte* from = BytesOf(part, begin, run);
      const bool is_zero = part.kind != Part::kFrame && from == nullptr;
      if (part.kind == Part::kCopied || (is_zero && !traits_.ordered)) {
        if (!pieces.empty()) HAULWAY_TRY(Put(at, pieces));
        pieces.clear();
        at = part.end;
        continue;
      }
      if (from != nullptr && from != out.data() && out.size() >= kLargePart) {
        pieces.emplace_back(from, out.size());
        continue;
      }
      if (part.kind == Part::kFrame) {
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

  // Null for what is no payload, and for a hole.
  const std::byte* BytesOf(const Part& part, uint64_t begin,
                           std::span<const std::byte> run) const {
    if (part.kind != Part::kPayload) return nullptr;
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

  void Digest(uint64_t chunk, std::span<const Part> parts, uint64_t begin,
              std::span<const std::byte> run) {
    digesting_.Measure([&] { DigestParts(chunk, parts, begin, run); });
  }
  void DigestParts(uint64_t chunk, std::span<const Part> parts, uint64_t begin,
                   std::span<const std::byte> run) {
    for (const Part& part : parts) {
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

  Status EncodeFrame(uint64_t chunk, const Part& part,
                     std::span<std::byte> out) {
    const Frame& frame = frames_[part.index];
    if (digests_wanted_ && frame.needs != Needs::kNothing) {
      digests_.Wait(chunk);
    }
    const Digests known = {digests_.crc32(), {}};
    if (out.size() == frame.length) {
      return layout_.EncodeFrame(part.index, known, out);
    }
    // It crosses chunks: encoded once, for all of them.
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

  // Memory for one chunk, whose content is unspecified.
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
  const uint64_t chunk_bytes_;  // What one thread digests and then writes.
  const uint64_t chunks_;
  CrcTable digests_;
  std::atomic<uint64_t> requests_{0};
  std::atomic<bool> copies_{true};  // As far as is known, the sink does.
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
