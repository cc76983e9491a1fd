#include <algorithm>
#include <array>
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
#include "save/write_measure.h"
#include "tensor/payload_digest.h"

namespace haulway {

namespace {

// What is encoded and then written: small enough to stay in cache meanwhile.
constexpr uint64_t kPieceBytes = kMiB;
// Of each of many: smaller ones cost more to write.
constexpr uint64_t kSmallPieceBytes = 64 * kKiB;
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
    WriteStats stats;
    stats.bytes = layout_.size();
    stats.threads = options_.threads > 0 ? options_.threads : UsableCpus();
    stats.direct = traits.direct;
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
    // The largest first, so that none is left alone with one at the end.
    std::vector<size_t> order(records_.size());
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(order, std::greater<>(), [&](size_t i) {
      return records_[i].payload_bytes;
    });
    const std::vector<std::span<const size_t>> groups = Groups(order, threads);
    return ParallelFor(groups.size(), threads, [&](uint64_t g) -> Status {
      std::vector<std::vector<std::byte>> headers;
      HAULWAY_TRY(EncodeRecords(groups[g], /*write=*/true, &headers));
      for (size_t m = 0; m < headers.size(); ++m) {
        const FileRecord& record = records_[groups[g][m]];
        HAULWAY_TRY(Put(record.header_offset, headers[m]));
        HAULWAY_TRY(Advance(record.payload_bytes));
      }
      return Status();
    });
  }

  // What one thread writes together: neighbours in the order of their size,
  // but no more than a share that leaves all threads enough to do, and of very
  // small ones so many that handing them out costs little.
  std::vector<std::span<const size_t>> Groups(std::span<const size_t> order,
                                              int threads) const {
    const size_t most = PayloadsTogether(order.size(), threads);
    const uint64_t share =
        layout_.size() / (2 * static_cast<uint64_t>(threads));
    std::vector<std::span<const size_t>> groups;
    uint64_t bytes = 0;
    for (size_t i = 0, first = 0; i < order.size(); ++i) {
      bytes += records_[order[i]].payload_bytes + kKiB;
      const bool full = i + 1 - first >= most && bytes >= kTaskBytes;
      if (!full && bytes < share && i + 1 < order.size()) continue;
      groups.push_back(order.subspan(first, i + 1 - first));
      first = i + 1;
      bytes = 0;
    }
    return groups;
  }

  Status WriteInOrder() {
    std::span<const FixedBytes> fixed = layout_.fixed();
    const auto write_fixed = [&](uint64_t before) -> Status {
      while (!fixed.empty() && fixed.front().offset < before) {
        HAULWAY_TRY(PutNext(fixed.front().offset, fixed.front().bytes));
        fixed = fixed.subspan(1);
      }
      return Status();
    };
    // Headers that stand before all payloads are kept, for comparison.
    const bool apart = std::ranges::any_of(
        records_, [](const FileRecord& r) { return r.header_bytes != 0; });
    std::vector<std::vector<std::byte>> headers(apart ? records_.size() : 1);
    const auto write_header = [&](size_t i) -> Status {
      std::vector<std::byte>& header = headers[apart ? i : 0];
      HAULWAY_TRY(write_fixed(records_[i].header_offset));
      header.resize(records_[i].header_size());
      HAULWAY_TRY(EncodeRecord(i, /*write=*/false, header));
      return PutNext(records_[i].header_offset, header);
    };
    for (size_t i = 0; apart && i < records_.size(); ++i) {
      HAULWAY_TRY(write_header(i));
    }
    for (size_t i = 0; i < records_.size(); ++i) {
      if (!apart) HAULWAY_TRY(write_header(i));
      HAULWAY_TRY(write_fixed(records_[i].payload_offset));
      if (records_[i].payload_bytes != 0) {
        HAULWAY_TRY(FillTo(records_[i].payload_offset));
      }
      const std::vector<std::byte>& header = headers[apart ? i : 0];
      std::vector<std::byte> same(header.size());
      HAULWAY_TRY(EncodeRecord(i, /*write=*/true, same));
      next_ = std::max(next_,
                       records_[i].payload_offset + records_[i].payload_bytes);
      if (same != header) {
        return Status(Code::kInvalidArgument,
                      "a tensor was changed while it was written");
      }
      HAULWAY_TRY(Advance(records_[i].payload_bytes));
    }
    return write_fixed(UINT64_MAX);
  }

  Status PutNext(uint64_t offset, std::span<const std::byte> bytes) {
    HAULWAY_TRY(FillTo(offset));
    next_ = offset + bytes.size();
    return Put(offset, bytes);
  }

  // Zeros up to `offset`, of an ordered sink.
  Status FillTo(uint64_t offset) {
    static constexpr std::array<std::byte, 4 * kKiB> kZeros{};
    while (next_ < offset) {
      const uint64_t bytes = std::min<uint64_t>(offset - next_, kZeros.size());
      HAULWAY_TRY(Put(next_, std::span(kZeros).subspan(0, bytes)));
      next_ += bytes;
    }
    return Status();
  }

  Status EncodeRecord(size_t i, bool write, std::span<std::byte> header) {
    std::vector<std::vector<std::byte>> headers;
    HAULWAY_TRY(EncodeRecords(std::span(&i, 1), write, &headers));
    std::ranges::copy(headers[0], header.begin());
    return Status();
  }

  // Encodes payloads, a piece of each in turn, writing them if `write`, and
  // gives their headers.
  Status EncodeRecords(std::span<const size_t> members, bool write,
                       std::vector<std::vector<std::byte>>* headers) {
    struct Stream {
      const FileRecord* record;
      std::unique_ptr<RecordEncoder> encoder;
      uint64_t step;
      uint64_t done;
    };
    std::vector<Stream> streams;
    const uint64_t share =
        std::max(kSmallPieceBytes, kPieceBytes / members.size());
    uint64_t scratch_bytes = 0;
    for (const size_t i : members) {
      Stream& stream =
          streams.emplace_back(&records_[i], layout_.Start(i), 0, 0);
      const uint64_t unit = std::max<uint64_t>(1, stream.encoder->unit_bytes());
      stream.step = std::max<uint64_t>(1, share / unit) * unit;
      if (unit > 1) {
        scratch_bytes = std::max(
            scratch_bytes, std::min(stream.step, stream.record->payload_bytes));
      }
    }
    std::vector<std::byte> scratch(scratch_bytes);
    std::vector<Stream*> turn;
    std::vector<RecordEncoder*> encoders;
    std::vector<std::span<const std::byte>> pieces;
    while (true) {
      turn.clear();
      encoders.clear();
      pieces.clear();
      for (Stream& stream : streams) {
        const uint64_t left = stream.record->payload_bytes - stream.done;
        if (left == 0) continue;
        turn.push_back(&stream);
        encoders.push_back(stream.encoder.get());
        pieces.emplace_back(stream.record->bytes + stream.done,
                            std::min(stream.step, left));
      }
      if (turn.empty()) break;
      layout_.DigestTogether(encoders, pieces);
      for (size_t t = 0; t < turn.size(); ++t) {
        Stream& stream = *turn[t];
        const auto stored = stream.encoder->Encode(
            pieces[t], std::span(scratch).subspan(
                           0, std::min(scratch.size(), pieces[t].size())));
        if (write) {
          HAULWAY_TRY(Put(stream.record->payload_offset + stream.done, stored));
        }
        stream.done += pieces[t].size();
      }
    }
    headers->clear();
    for (const Stream& stream : streams) {
      stream.encoder->Finish(
          headers->emplace_back(stream.record->header_size()));
    }
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
  uint64_t next_ = 0;  // Of an ordered sink.
  std::atomic<uint64_t> requests_{0};
  std::mutex mutex_;
  uint64_t done_ HAULWAY_GUARDED_BY(mutex_) = 0;
};

}  // namespace

Result<WriteStats> WriteRecords(const RecordLayout& layout, ByteSink& sink,
                                const WriteOptions& options) {
  MeasuredSink measured(&sink);
  const MeasuredLayout timed(&layout);
  const WriteOptions with = WithThreads(options);
  auto stats = RecordWriter(timed, measured, with).Run();
  if (!stats.ok()) return std::move(stats).status().Of(sink.name());
  measured.Record(&*stats);
  stats->digest_seconds = timed.digest_seconds();
  for (const FileRecord& record : layout.records()) {
    stats->tensor_bytes += record.payload_bytes;
  }
  return stats;
}

}  // namespace haulway
