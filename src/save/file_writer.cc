#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "base/digest.h"
#include "base/thread_pool.h"
#include "haulway/buffer.h"
#include "haulway/limits.h"
#include "haulway/save.h"
#include "save/write_measure.h"

namespace haulway {

namespace {

// Payloads below this are copied into one run with their neighbours.
constexpr uint64_t kLargePart = 16 * kKiB;

// A part of a payload or of a gap.
struct Part {
  bool is_gap;
  size_t index;
  uint64_t begin;  // In the file.
  uint64_t end;
};

// A Digests table fills in the CRC-32 of every payload while its pieces are
// digested chunk by chunk, on any thread in any order.
class Digests {
 public:
  Digests(size_t payloads, uint64_t chunks)
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

class FileWriter {
 public:
  // `options` are those of WithThreads().
  FileWriter(const FileLayout& layout, ByteSink& sink, const SinkTraits& traits,
             const WriteOptions& options)
      : layout_(layout),
        payloads_(layout.payloads()),
        size_(layout.size()),
        sink_(sink),
        traits_(traits),
        options_(options),
        chunk_bytes_(traits.request_bytes),
        chunks_((size_ + chunk_bytes_ - 1) / chunk_bytes_),
        digests_(payloads_.size(), chunks_) {}

  Result<WriteStats> Run() {
    const auto start = std::chrono::steady_clock::now();
    stats_.bytes = size_;
    stats_.direct = traits_.direct;
    stats_.threads = traits_.ordered ? 1 : options_.threads;
    HAULWAY_TRY(ParallelFor(chunks_, stats_.threads,
                            [&](uint64_t chunk) { return Write(chunk); }));
    stats_.requests = requests_.load();
    stats_.digest_seconds = digesting_.seconds();
    HAULWAY_TRY(sink_.Commit(size_));
    stats_.seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start)
            .count();
    return stats_;
  }

 private:
  uint64_t GapBegin(size_t gap) const {
    return gap == 0 ? 0 : payloads_[gap - 1].end();
  }
  uint64_t GapEnd(size_t gap) const {
    return gap == payloads_.size() ? size_ : payloads_[gap].offset;
  }

  // What of the file lies in [begin, end), in order.
  std::vector<Part> PartsOf(uint64_t begin, uint64_t end) const {
    std::vector<Part> parts;
    size_t i = static_cast<size_t>(
        std::partition_point(
            payloads_.begin(), payloads_.end(),
            [&](const Payload& payload) { return payload.end() <= begin; }) -
        payloads_.begin());
    for (uint64_t at = begin; at < end; ++i) {
      if (const uint64_t to = std::min(end, GapEnd(i)); at < to) {
        parts.push_back({true, i, at, to});
        at = to;
      }
      if (i == payloads_.size()) break;
      if (const uint64_t to = std::min(end, payloads_[i].end()); at < to) {
        parts.push_back({false, i, at, to});
        at = to;
      }
    }
    return parts;
  }

  Status Write(uint64_t chunk) {
    const uint64_t begin = chunk * chunk_bytes_;
    const uint64_t end = std::min(size_, begin + chunk_bytes_);
    const std::vector<Part> parts = PartsOf(begin, end);
    auto run = TakeRun();
    // Others wait for the digests, come what may.
    if (layout_.wants_crc32()) Digest(chunk, parts);
    if (!run.ok()) return std::move(run).status();
    if (options_.cancel != nullptr && options_.cancel->load()) {
      return Status(Code::kCancelled, "writing was cancelled");
    }
    HAULWAY_TRY(WriteParts(chunk, parts, begin, run->mutable_bytes()));
    ReturnRun(*std::move(run));
    Advance(end - begin);
    return Status();
  }

  // Writes large parts from where they are, and what is small between them
  // from `run`, into which it is copied. Holes are left out.
  Status WriteParts(uint64_t chunk, std::span<const Part> parts, uint64_t begin,
                    std::span<std::byte> run) {
    std::vector<std::span<const std::byte>> pieces;
    uint64_t at = begin;  // Where the pieces go.
    uint64_t used = 0;    // Of the run.
    size_t open = 0;      // Bytes at its end that the next part may extend.
    for (const Part& part : parts) {
      const uint64_t length = part.end - part.begin;
      const std::byte* from = part.is_gap ? nullptr : BytesOf(part);
      const bool is_hole = !part.is_gap && from == nullptr;
      if (is_hole && !traits_.ordered) {
        if (!pieces.empty()) HAULWAY_TRY(Put(at, pieces));
        pieces.clear();
        at = part.end;
        open = 0;
        continue;
      }
      if (from != nullptr && length >= kLargePart) {
        pieces.emplace_back(from, length);
        open = 0;
        continue;
      }
      const std::span<std::byte> out = run.subspan(used, length);
      if (part.is_gap) {
        HAULWAY_TRY(EncodeGap(chunk, part, out));
      } else if (is_hole) {
        std::ranges::fill(out, std::byte{0});
      } else {
        std::copy_n(from, length, out.begin());
      }
      used += length;
      open += length;
      if (open > length) pieces.pop_back();
      pieces.push_back(run.subspan(used - open, open));
    }
    return pieces.empty() ? Status() : Put(at, pieces);
  }

  // Null for a hole.
  const std::byte* BytesOf(const Part& part) const {
    const Payload& payload = payloads_[part.index];
    return payload.bytes == nullptr
               ? nullptr
               : payload.bytes + (part.begin - payload.offset);
  }

  Status Put(uint64_t offset,
             std::span<const std::span<const std::byte>> pieces) {
    requests_.fetch_add(1, std::memory_order_relaxed);
    return sink_.WriteAt(offset, pieces);
  }

  void Digest(uint64_t chunk, std::span<const Part> parts) {
    digesting_.Measure([&] { DigestParts(chunk, parts); });
  }
  void DigestParts(uint64_t chunk, std::span<const Part> parts) {
    for (const Part& part : parts) {
      if (part.is_gap || BytesOf(part) == nullptr) continue;
      const uint64_t length = part.end - part.begin;
      const uint32_t crc =
          Crc32(0, std::span<const std::byte>(BytesOf(part), length));
      if (part.begin == payloads_[part.index].offset) {
        digests_.Start(part.index, crc);
      } else {
        digests_.Continue(chunk, part.index, crc, length);
      }
    }
    digests_.Finish(chunk);
  }

  Status EncodeGap(uint64_t chunk, const Part& part, std::span<std::byte> out) {
    const uint64_t begin = GapBegin(part.index);
    const uint64_t length = GapEnd(part.index) - begin;
    if (layout_.wants_crc32() && part.index > 0) digests_.Wait(chunk);
    const auto crc32 = digests_.crc32().subspan(0, part.index);
    if (out.size() == length) {
      return layout_.EncodeGap(part.index, crc32, out);
    }
    // It crosses chunks: encoded once, for all of them.
    const std::lock_guard lock(gaps_mutex_);
    std::vector<std::byte>& whole = gaps_[part.index];
    if (whole.empty()) {
      whole.resize(length);
      HAULWAY_TRY(layout_.EncodeGap(part.index, crc32, whole));
    }
    std::memcpy(out.data(), whole.data() + (part.begin - begin), out.size());
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
    return AllocateBuffer(chunk_bytes_);
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

  const FileLayout& layout_;
  const std::span<const Payload> payloads_;
  const uint64_t size_;
  ByteSink& sink_;
  const SinkTraits traits_;
  const WriteOptions& options_;
  const uint64_t chunk_bytes_;  // What one thread digests and then writes.
  const uint64_t chunks_;
  Digests digests_;
  std::atomic<uint64_t> requests_{0};
  WriteStats stats_;

  std::mutex gaps_mutex_;
  std::map<size_t, std::vector<std::byte>> gaps_;
  std::mutex runs_mutex_;
  std::vector<Buffer> runs_;
  std::mutex progress_mutex_;
  uint64_t done_ = 0;
  WorkTime digesting_;
};

}  // namespace

Result<WriteStats> WriteFile(const FileLayout& layout, ByteSink& sink,
                             const WriteOptions& options) {
  const std::string name(sink.name());
  MeasuredSink measured(&sink);
  const WriteOptions with = WithThreads(options);
  const auto run = [&]() -> Result<WriteStats> {
    HAULWAY_ASSIGN(const SinkTraits traits, measured.Begin(layout.size()));
    return FileWriter(layout, measured, traits, with).Run();
  };
  auto stats = run();
  if (!stats.ok()) return std::move(stats).status().Of(name);
  measured.Record(&*stats);
  for (const Payload& payload : layout.payloads()) {
    if (payload.bytes != nullptr) stats->tensor_bytes += payload.length;
  }
  return stats;
}

}  // namespace haulway
