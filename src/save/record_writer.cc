#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "base/thread_pool.h"
#include "haulway/buffer.h"
#include "haulway/limits.h"
#include "haulway/record_layout.h"
#include "save/write_ahead.h"
#include "save/write_measure.h"
#include "tensor/payload_digest.h"

namespace haulway {

namespace {

// What is digested at once, of one payload or of many, each of which has its
// share: small enough for the next step to find it in cache.
constexpr uint64_t kDigestBytes = 512 * kKiB;
constexpr uint64_t kSmallestShare = 16 * kKiB;
// Records of a task, so that handing out very small ones costs little.
constexpr uint64_t kTaskBytes = 256 * kKiB;
// What a thread encodes ahead while another writes.
constexpr uint64_t kAheadBytes = 4 * kMiB;

// A payload that is digested and, some way behind, written.
struct Stream {
  const FileRecord* record;
  std::unique_ptr<RecordEncoder> encoder;
  uint64_t unit;  // 0: it is stored as it is.
  uint64_t digested = 0;
  uint64_t written = 0;  // Or encoded.

  std::span<const std::byte> Piece(uint64_t begin, uint64_t end) const {
    return {record->bytes + begin, end - begin};
  }
};

// What one thread digests together.
struct Group {
  std::vector<Stream> streams;
  std::vector<std::vector<std::byte>> headers;
};

class RecordWriter {
 public:
  // `options` are those of WithThreads().
  RecordWriter(const RecordLayout& layout, ByteSink& sink,
               const WriteOptions& options)
      : layout_(layout),
        records_(layout.records()),
        sink_(sink),
        options_(options) {}

  Result<WriteStats> Run() {
    const auto start = std::chrono::steady_clock::now();
    HAULWAY_ASSIGN(traits_, sink_.Begin(layout_.size()));
    WriteStats stats;
    stats.bytes = layout_.size();
    stats.threads = options_.threads;
    stats.direct = traits_.direct;
    if (traits_.ordered) {
      stats.threads = 1;
      HAULWAY_TRY(WriteInOrder());
    } else {
      HAULWAY_TRY(WriteAtOnce(stats.threads));
    }
    const std::vector<std::byte> tail = layout_.Tail();
    HAULWAY_TRY(Put(layout_.size() - tail.size(), tail));
    stats.requests = requests_.load();
    stats.encode_seconds = encoding_.seconds();
    HAULWAY_TRY(CheckCancelled());
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
    HAULWAY_TRY(ParallelFor(groups.size(), threads, [&](uint64_t g) -> Status {
      Group group{Start(groups[g]), {}};
      HAULWAY_TRY(Encode(group.streams, /*write=*/true));
      for (const Stream& stream : group.streams) {
        group.headers.push_back(HeaderOf(stream));
      }
      {
        const std::lock_guard lock(mutex_);
        encoded_.push_back(std::move(group));
      }
      return WriteReady({});
    }));
    return WriteReady({});
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
      HAULWAY_ASSIGN(header, EncodeRecord(i, /*write=*/false));
      return PutNext(records_[i].header_offset, header);
    };
    for (size_t i = 0; apart && i < records_.size(); ++i) {
      HAULWAY_TRY(write_header(i));
    }
    for (size_t i = 0; i < records_.size(); ++i) {
      if (!apart) HAULWAY_TRY(write_header(i));
      // Where nothing is written, nothing is skipped to either.
      if (records_[i].payload_bytes != 0) {
        HAULWAY_TRY(write_fixed(records_[i].payload_offset));
        HAULWAY_TRY(FillTo(records_[i].payload_offset));
        next_ = records_[i].payload_offset + records_[i].payload_bytes;
      }
      HAULWAY_ASSIGN(const std::vector<std::byte> same,
                     EncodeRecord(i, /*write=*/true));
      if (same != headers[apart ? i : 0]) {
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

  // Encodes a record, of which it writes the payload if `write`, and gives its
  // header.
  Result<std::vector<std::byte>> EncodeRecord(size_t i, bool write) {
    std::vector<Stream> streams = Start(std::span(&i, 1));
    Stream& stream = streams[0];
    HAULWAY_TRY(Encode(streams, write));
    const FileRecord& record = *stream.record;
    if (write) {
      HAULWAY_TRY(Put(record.payload_offset + stream.written,
                      stream.Piece(stream.written, record.payload_bytes)));
    }
    return HeaderOf(stream);
  }

  std::vector<Stream> Start(std::span<const size_t> members) const {
    std::vector<Stream> streams;
    streams.reserve(members.size());
    for (const size_t i : members) {
      Stream& stream = streams.emplace_back(&records_[i], layout_.Start(i), 0);
      stream.unit = stream.encoder->unit_bytes();
    }
    return streams;
  }

  static std::vector<std::byte> HeaderOf(const Stream& stream) {
    std::vector<std::byte> header(stream.record->header_size());
    stream.encoder->Finish(header);
    return header;
  }

  // Encodes payloads one by one where that is needed, then digests them, a
  // piece of each in turn. If `write`, writes them, but for the ends of those
  // that are stored as they are.
  Status Encode(std::span<Stream> streams, bool write) {
    HAULWAY_TRY(EncodePayloads(streams, write));
    const uint64_t share =
        std::max(kSmallestShare, kDigestBytes / streams.size());
    std::vector<RecordEncoder*> encoders;
    std::vector<std::span<const std::byte>> pieces;
    for (bool is_last = false; !is_last;) {
      is_last = true;
      encoders.clear();
      pieces.clear();
      for (Stream& stream : streams) {
        const uint64_t size = stream.record->payload_bytes;
        const uint64_t end = std::min(stream.digested + share, size);
        if (end != stream.digested) {
          encoders.push_back(stream.encoder.get());
          pieces.push_back(stream.Piece(stream.digested, end));
        }
        stream.digested = end;
        is_last = is_last && end == size;
      }
      layout_.DigestTogether(encoders, pieces);
      HAULWAY_TRY(CheckCancelled());
      if (write) HAULWAY_TRY(WriteReady(streams));
    }
    return Status();
  }

  Status EncodePayloads(std::span<Stream> streams, bool write) {
    uint64_t step = 0;
    uint64_t bytes = 0;
    for (const Stream& stream : streams) {
      if (stream.unit == 0) continue;
      step = std::max(step, StepOf(stream));
      bytes += stream.record->payload_bytes;
    }
    if (bytes == 0) return Status();
    WriteAhead ahead = TakeAhead();
    ahead.Reserve(std::min(bytes, std::max(step, kAheadBytes)));
    for (Stream& stream : streams) {
      if (stream.unit == 0) continue;
      HAULWAY_TRY(EncodeOne(write, &stream, &ahead));
    }
    HAULWAY_TRY(WriteEncoded(write, /*wait=*/true, &ahead));
    const std::lock_guard lock(mutex_);
    spare_.push_back(std::move(ahead));
    return Status();
  }

  Status EncodeOne(bool write, Stream* stream, WriteAhead* ahead) {
    const FileRecord& record = *stream->record;
    while (stream->written < record.payload_bytes) {
      const uint64_t end =
          std::min(stream->written + StepOf(*stream), record.payload_bytes);
      const auto piece = stream->Piece(stream->written, end);
      if (piece.size() > ahead->room()) {
        HAULWAY_TRY(WriteEncoded(write, /*wait=*/true, ahead));
      }
      const auto out =
          ahead->Take(record.payload_offset + stream->written, piece.size());
      encoding_.Measure([&] { stream->encoder->Encode(piece, out); });
      stream->written = end;
      HAULWAY_TRY(WriteEncoded(write, /*wait=*/false, ahead));
    }
    return Status();
  }

  WriteAhead TakeAhead() {
    const std::lock_guard lock(mutex_);
    if (spare_.empty()) return WriteAhead();
    WriteAhead ahead = std::move(spare_.back());
    spare_.pop_back();
    return ahead;
  }

  // Whole units, about as long as a request.
  uint64_t StepOf(const Stream& stream) const {
    return std::max(stream.unit, traits_.request_bytes) / stream.unit *
           stream.unit;
  }

  // Nothing if another thread writes, unless it is to `wait`.
  Status WriteEncoded(bool write, bool wait, WriteAhead* ahead) {
    std::unique_lock turn(turn_, std::defer_lock);
    if (traits_.in_turn && wait) turn.lock();
    if (traits_.in_turn && !wait && !turn.try_lock()) return Status();
    return ahead->Drain([&](uint64_t offset, std::span<const std::byte> bytes) {
      return write ? Put(offset, bytes) : CheckCancelled();
    });
  }

  // Up to where, in the file, a request begins: that is what file systems keep
  // together.
  Status WriteDigested(Stream* stream) {
    const uint64_t offset = stream->record->payload_offset;
    const uint64_t request = traits_.request_bytes;
    while (true) {
      const uint64_t end = ((offset + stream->written) / request + 1) * request;
      if (end > offset + stream->digested) return Status();
      HAULWAY_TRY(Put(offset + stream->written,
                      stream->Piece(stream->written, end - offset)));
      stream->written = end - offset;
    }
  }

  // Writes what other threads left to write, and of these as far as they are
  // digested; nothing if another thread does so, since there may be more to
  // digest meanwhile.
  Status WriteReady(std::span<Stream> streams) {
    std::unique_lock turn(turn_, std::defer_lock);
    if (traits_.in_turn && !turn.try_lock()) return Status();
    while (std::optional<Group> group = TakeEncoded()) {
      HAULWAY_TRY(WriteGroup(&*group));
    }
    for (Stream& stream : streams) {
      if (stream.unit == 0) HAULWAY_TRY(WriteDigested(&stream));
    }
    return Status();
  }

  std::optional<Group> TakeEncoded() {
    const std::lock_guard lock(mutex_);
    if (encoded_.empty()) return std::nullopt;
    std::optional<Group> group = std::move(encoded_.back());
    encoded_.pop_back();
    return group;
  }

  Status WriteGroup(Group* group) {
    // Headers, and ends of payloads.
    std::vector<std::pair<uint64_t, std::span<const std::byte>>> rest;
    uint64_t bytes = 0;
    for (size_t m = 0; m < group->streams.size(); ++m) {
      Stream& stream = group->streams[m];
      if (stream.unit == 0) HAULWAY_TRY(WriteDigested(&stream));
      const FileRecord& record = *stream.record;
      bytes += record.payload_bytes;
      rest.emplace_back(record.header_offset, group->headers[m]);
      rest.emplace_back(record.payload_offset + stream.written,
                        stream.Piece(stream.written, record.payload_bytes));
    }
    std::ranges::sort(rest, {}, &decltype(rest)::value_type::first);
    std::vector<std::span<const std::byte>> run;  // Of neighbours.
    uint64_t begin = 0;
    uint64_t end = 0;
    for (const auto& [offset, part] : rest) {
      if (part.empty()) continue;
      if (offset != end && !run.empty()) {
        HAULWAY_TRY(Put(begin, run));
        run.clear();
      }
      if (run.empty()) begin = offset;
      run.push_back(part);
      end = offset + part.size();
    }
    HAULWAY_TRY(Put(begin, run));
    return Advance(bytes);
  }

  Status Put(uint64_t offset, std::span<const std::byte> bytes) {
    return bytes.empty() ? Status() : Put(offset, std::span(&bytes, 1));
  }
  Status Put(uint64_t offset,
             std::span<const std::span<const std::byte>> parts) {
    if (parts.empty()) return Status();
    HAULWAY_TRY(CheckCancelled());
    requests_.fetch_add(1, std::memory_order_relaxed);
    return sink_.WriteAt(offset, parts);
  }

  Status CheckCancelled() const {
    if (options_.cancel == nullptr || !options_.cancel->load()) return Status();
    return Status(Code::kCancelled, "writing was cancelled");
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
  SinkTraits traits_;
  std::mutex turn_;    // Held by who writes, of a sink that wants that.
  uint64_t next_ = 0;  // Of an ordered sink.
  std::atomic<uint64_t> requests_{0};
  WorkTime encoding_;
  std::mutex mutex_;
  std::vector<Group> encoded_ HAULWAY_GUARDED_BY(mutex_);  // Not all written.
  std::vector<WriteAhead> spare_ HAULWAY_GUARDED_BY(mutex_);
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
