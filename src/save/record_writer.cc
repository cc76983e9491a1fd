#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <numeric>
#include <string>
#include <vector>

#include "base/posix.h"
#include "base/thread_pool.h"
#include "haulway/buffer.h"
#include "haulway/limits.h"
#include "haulway/record_layout.h"

namespace haulway {

namespace {

// What is encoded and then written: small enough to stay in cache meanwhile.
constexpr uint64_t kPieceBytes = kMiB;
// Records of a task, so that handing out very small ones costs little.
constexpr uint64_t kTaskBytes = 256 * kKiB;

class RecordWriter {
 public:
  RecordWriter(const RecordLayout& layout, ByteSink& sink,
               const WriteOptions& options)
      : layout_(layout),
        records_(layout.records()),
        sink_(sink),
        options_(options) {}

  Result<WriteStats> Run() {
    const auto start = std::chrono::steady_clock::now();
    HAULWAY_ASSIGN(const SinkTraits traits, sink_.Begin(layout_.size()));
    if (traits.block_bytes > 1) {
      return Status(Code::kUnsupported,
                    "records cannot be written to a sink of whole blocks");
    }
    WriteStats stats;
    stats.bytes = layout_.size();
    stats.threads = options_.threads > 0 ? options_.threads : UsableCpus();
    if (traits.ordered) {
      stats.threads = 1;
      HAULWAY_TRY(WriteInOrder());
    } else {
      HAULWAY_TRY(WriteAtOnce(stats.threads));
    }
    const std::vector<std::byte> tail = layout_.Tail();
    HAULWAY_TRY(Put(layout_.size() - tail.size(), tail));
    stats.requests = requests_.load();
    HAULWAY_TRY(sink_.Commit(layout_.size()));
    stats.seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start)
            .count();
    return stats;
  }

 private:
  Status WriteAtOnce(int threads) {
    for (const FixedBytes& fixed : layout_.fixed()) {
      HAULWAY_TRY(Put(fixed.offset, fixed.bytes));
    }
    // Tasks of neighbours, the largest first, so that none is left alone with
    // one at the end.
    struct Task {
      size_t first;
      size_t end;
      uint64_t bytes;
    };
    std::vector<Task> tasks;
    for (size_t i = 0; i < records_.size(); ++i) {
      const uint64_t bytes = records_[i].payload_bytes;
      if (tasks.empty() || tasks.back().bytes + bytes > kTaskBytes) {
        tasks.push_back({i, i, 0});
      }
      tasks.back().end = i + 1;
      tasks.back().bytes += bytes + kKiB;
    }
    std::ranges::stable_sort(tasks, std::greater<>(), &Task::bytes);
    return ParallelFor(tasks.size(), threads, [&](uint64_t t) -> Status {
      std::vector<std::byte> header;
      for (size_t i = tasks[t].first; i < tasks[t].end; ++i) {
        const FileRecord& record = records_[i];
        header.resize(record.payload_offset - record.header_offset);
        HAULWAY_TRY(EncodeRecord(i, /*write=*/true, header));
        HAULWAY_TRY(Put(record.header_offset, header));
        HAULWAY_TRY(Advance(record.payload_bytes));
      }
      return Status();
    });
  }

  Status WriteInOrder() {
    std::span<const FixedBytes> fixed = layout_.fixed();
    const auto write_fixed = [&](uint64_t before) -> Status {
      while (!fixed.empty() && fixed.front().offset < before) {
        HAULWAY_TRY(Put(fixed.front().offset, fixed.front().bytes));
        fixed = fixed.subspan(1);
      }
      return Status();
    };
    std::vector<std::byte> header;
    for (size_t i = 0; i < records_.size(); ++i) {
      const FileRecord& record = records_[i];
      HAULWAY_TRY(write_fixed(record.header_offset));
      header.resize(record.payload_offset - record.header_offset);
      HAULWAY_TRY(EncodeRecord(i, /*write=*/false, header));
      HAULWAY_TRY(Put(record.header_offset, header));
      std::vector<std::byte> same(header.size());
      HAULWAY_TRY(EncodeRecord(i, /*write=*/true, same));
      if (same != header) {
        return Status(Code::kInvalidArgument,
                      "a tensor was changed while it was written");
      }
      HAULWAY_TRY(Advance(record.payload_bytes));
    }
    return write_fixed(UINT64_MAX);
  }

  // Encodes a payload, writing it if `write`, and its header to `header`.
  Status EncodeRecord(size_t i, bool write, std::span<std::byte> header) {
    const FileRecord& record = records_[i];
    const std::unique_ptr<RecordEncoder> encoder = layout_.Start(i);
    const uint64_t unit = std::max<uint64_t>(1, encoder->unit_bytes());
    const uint64_t step = std::max<uint64_t>(1, kPieceBytes / unit) * unit;
    std::vector<std::byte> scratch;
    if (encoder->unit_bytes() > 1) {
      scratch.resize(std::min(step, record.payload_bytes));
    }
    for (uint64_t done = 0; done < record.payload_bytes; done += step) {
      const std::span<const std::byte> piece(
          record.bytes + done, std::min(step, record.payload_bytes - done));
      const auto stored = encoder->Encode(
          piece, std::span(scratch).subspan(
                     0, std::min(scratch.size(), piece.size())));
      if (write) HAULWAY_TRY(Put(record.payload_offset + done, stored));
    }
    encoder->Finish(header);
    return Status();
  }

  Status Put(uint64_t offset, std::span<const std::byte> bytes) {
    if (bytes.empty()) return Status();
    if (options_.cancel != nullptr && options_.cancel->load()) {
      return Status(Code::kCancelled, "writing was cancelled");
    }
    requests_.fetch_add(1, std::memory_order_relaxed);
    return sink_.WriteAt(offset, bytes);
  }

  Status Advance(uint64_t bytes) {
    if (!options_.progress) return Status();
    const std::lock_guard lock(mutex_);
    done_ += bytes;
    options_.progress(done_, layout_.size());
    return Status();
  }

  const RecordLayout& layout_;
  const std::span<const FileRecord> records_;
  ByteSink& sink_;
  const WriteOptions& options_;
  std::atomic<uint64_t> requests_{0};
  std::mutex mutex_;
  uint64_t done_ HAULWAY_GUARDED_BY(mutex_) = 0;
};

}  // namespace

Result<WriteStats> WriteRecords(const RecordLayout& layout, ByteSink& sink,
                                const WriteOptions& options) {
  auto stats = RecordWriter(layout, sink, options).Run();
  if (!stats.ok()) return std::move(stats).status().Of(sink.name());
  return stats;
}

}  // namespace haulway
