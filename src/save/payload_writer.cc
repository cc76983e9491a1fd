// Design: for layouts that digest in order (SHA-256, a MAC), one thread
// processes a payload from start to end. Many small payloads are digested
// together in SIMD lanes. A payload to be encrypted is encrypted ahead, into 4
// MiB of memory, while another thread is in the kernel. Frames that need a
// digest are written together with it. The largest payloads start first, so
// that none is left alone at the end. For an ordered sink, a single thread
// writes, and payloads that are not in memory in their stored form are digested
// twice.
//
// Tried instead: writing pieces of 64 KiB that cross pages, with all threads in
// the kernel, took 518 to 606 ms per GiB; whole MiBs by one thread, while
// others digest, 303 to 316. Encrypting into units as they fill, with every
// thread in the kernel, spun on the file's lock: 1237 ms per GiB against 950.
// SHA-256 does not allow splitting a payload between threads.

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "base/thread_pool.h"
#include "haulway/buffer.h"
#include "haulway/options.h"
#include "save/write_ahead.h"
#include "save/write_measure.h"
#include "save/writers.h"
#include "tensor/payload_digest.h"

namespace haulway {

namespace {

// Bytes digested in one step, of one payload or divided among several: small
// enough that the next step finds them in the cache.
constexpr uint64_t kDigestBytes = 512 * kKiB;
constexpr uint64_t kSmallestShare = 16 * kKiB;
// Size of a task, counting about 1 KiB per frame, so that scheduling very small
// records costs little.
constexpr uint64_t kTaskBytes = 256 * kKiB;
// Bytes that a thread encodes ahead while another one writes.
constexpr uint64_t kAheadBytes = 4 * kMiB;

// A payload that is digested and, some way behind, written.
struct Stream {
  size_t number;
  const Payload* payload;
  std::unique_ptr<PayloadEncoder> encoder;
  uint64_t unit = 0;  // 0 if the payload is stored unchanged.
  uint64_t digested = 0;
  uint64_t written = 0;  // Bytes written or encoded.
  // The whole payload, if it is small and comes from a source.
  std::vector<std::byte> pulled;

  std::span<const std::byte> Piece(uint64_t begin, uint64_t end) const {
    const std::byte* bytes =
        payload->bytes != nullptr ? payload->bytes : pulled.data();
    return {bytes + begin, end - begin};
  }
};

// A frame that waits to be written.
struct EncodedFrame {
  uint64_t offset;
  std::vector<std::byte> bytes;
};

// Payloads that one thread digests together.
struct Group {
  std::vector<Stream> streams;
  std::vector<EncodedFrame> frames;
};

class PayloadWriter {
 public:
  // `options` must come from WithThreads().
  PayloadWriter(const Layout& layout, ByteSink& sink, const SinkTraits& traits,
                const WriteOptions& options)
      : layout_(layout),
        payloads_(layout.payloads()),
        frames_(layout.frames()),
        sink_(sink),
        options_(options),
        traits_(traits),
        digests_(payloads_.size()),
        frame_of_(payloads_.size(), kNoFrame),
        is_stored_(payloads_.size()) {
    for (size_t i = 0; i < frames_.size(); ++i) {
      if (frames_[i].needs == Needs::kPayload)
        frame_of_[frames_[i].payload] = i;
      keeps_digests_ = keeps_digests_ || frames_[i].needs == Needs::kAll;
    }
  }

  Result<WriteStats> Run() {
    WriteStats stats;
    stats.threads = traits_.ordered ? 1 : options_.threads;
    HAULWAY_TRY(traits_.ordered ? WriteInOrder() : WriteAtOnce(stats.threads));
    stats.requests = requests_.load();
    stats.encode_seconds = encoding_.seconds();
    stats.digest_seconds = digesting_.seconds();
    return stats;
  }

 private:
  static constexpr size_t kNoFrame = SIZE_MAX;

  Status WriteAtOnce(int threads) {
    HAULWAY_TRY(WriteFrames(Needs::kNothing));
    // Start with the largest, so that no thread ends up with a large one at the
    // end.
    std::vector<uint32_t> order(payloads_.size());
    std::iota(order.begin(), order.end(), 0);
    const auto bytes_of = [&](uint32_t i) {
      return payloads_[i].length + kKiB;
    };
    std::ranges::stable_sort(order, std::greater<>(), bytes_of);
    const auto groups =
        GroupPayloads(order, PayloadsTogether(order.size(), threads), threads,
                      bytes_of, kTaskBytes);
    HAULWAY_TRY(ParallelFor(groups.size(), threads, [&](uint64_t g) -> Status {
      Group group{Start(groups[g]), {}};
      HAULWAY_TRY(Encode(group.streams, /*write=*/true));
      for (Stream& stream : group.streams) {
        HAULWAY_TRY(Finish(&stream, &group.frames));
      }
      {
        const std::lock_guard lock(mutex_);
        encoded_.push_back(std::move(group));
      }
      return WriteReady({});
    }));
    HAULWAY_TRY(WriteReady({}));
    return WriteFrames(Needs::kAll);
  }

  // Writes all frames with these needs.
  Status WriteFrames(Needs needs) {
    for (size_t i = 0; i < frames_.size(); ++i) {
      if (frames_[i].needs != needs) continue;
      HAULWAY_ASSIGN(const EncodedFrame frame, EncodeFrame(i));
      HAULWAY_TRY(Put(frame.offset, frame.bytes));
    }
    return Status();
  }

  Result<EncodedFrame> EncodeFrame(size_t i) const {
    EncodedFrame frame{frames_[i].offset, {}};
    frame.bytes.resize(frames_[i].length);
    HAULWAY_TRY(layout_.EncodeFrame(i, {{}, digests_}, frame.bytes));
    return frame;
  }

  // Stores the digest of a payload, and encodes the frame that needs it.
  Status Finish(Stream* stream, std::vector<EncodedFrame>* frames) {
    std::vector<std::byte>& digest = digests_[stream->number];
    digest = stream->encoder->Finish();
    const size_t frame = frame_of_[stream->number];
    if (frame != kNoFrame) {
      HAULWAY_ASSIGN(EncodedFrame encoded, EncodeFrame(frame));
      frames->push_back(std::move(encoded));
    }
    if (!keeps_digests_) digest = {};
    return Status();
  }

  // Writes to an ordered sink. Digests that a frame needs before its payload is
  // written are computed first. If the payload is then read or encoded again,
  // it is digested again, and the digests are compared.
  Status WriteInOrder() {
    size_t frame = 0;
    for (size_t i = 0; i < payloads_.size(); ++i) {
      HAULWAY_TRY(WriteFramesBefore(payloads_[i].offset, &frame));
      // Do not skip to a payload without bytes.
      if (payloads_[i].length != 0) {
        HAULWAY_TRY(FillTo(payloads_[i].offset));
        next_ = payloads_[i].end();
      }
      if (is_stored_[i]) {
        HAULWAY_TRY(PutStored(payloads_[i]));
      } else {
        HAULWAY_ASSIGN(std::vector<std::byte> digest,
                       EncodePayload(i, /*write=*/true));
        if (!digests_[i].empty() && digests_[i] != digest) {
          return Status(Code::kInvalidArgument,
                        "a tensor was changed while it was written");
        }
        digests_[i] = std::move(digest);
      }
      const bool is_known_to_all = frame_of_[i] < frame && !keeps_digests_;
      if (is_known_to_all) digests_[i] = {};
      HAULWAY_TRY(Advance(payloads_[i].length));
    }
    HAULWAY_TRY(WriteFramesBefore(UINT64_MAX, &frame));
    return FillTo(layout_.size());
  }

  Status PutStored(const Payload& payload) {
    const std::span<const std::byte> bytes(payload.bytes, payload.length);
    for (uint64_t at = 0; at < bytes.size(); at += traits_.request_bytes) {
      HAULWAY_TRY(
          Put(payload.offset + at,
              bytes.subspan(at, std::min<uint64_t>(traits_.request_bytes,
                                                   bytes.size() - at))));
    }
    return Status();
  }

  Status WriteFramesBefore(uint64_t end, size_t* frame) {
    for (; *frame < frames_.size(); ++*frame) {
      const Frame& next = frames_[*frame];
      // The frame of a payload without bytes may be where the next one begins.
      if (next.offset > end || (next.offset == end && next.length != 0)) break;
      if (next.needs == Needs::kPayload) HAULWAY_TRY(Know(next.payload));
      for (size_t i = 0; next.needs == Needs::kAll && i < payloads_.size();
           ++i) {
        HAULWAY_TRY(Know(i));
      }
      HAULWAY_ASSIGN(const EncodedFrame encoded, EncodeFrame(*frame));
      HAULWAY_TRY(FillTo(encoded.offset));
      next_ = next.end();
      HAULWAY_TRY(Put(encoded.offset, encoded.bytes));
    }
    return Status();
  }

  Status Know(size_t payload) {
    if (!digests_[payload].empty()) return Status();
    HAULWAY_ASSIGN(digests_[payload], EncodePayload(payload, /*write=*/false));
    return Status();
  }

  // Writes zeros up to `offset`, for an ordered sink.
  Status FillTo(uint64_t offset) {
    static constexpr std::array<std::byte, 4 * kKiB> kZeros{};
    while (next_ < offset) {
      const uint64_t bytes = std::min<uint64_t>(offset - next_, kZeros.size());
      HAULWAY_TRY(Put(next_, std::span(kZeros).subspan(0, bytes)));
      next_ += bytes;
    }
    return Status();
  }

  // Encodes a payload, writes it if `write`, and returns its digest.
  Result<std::vector<std::byte>> EncodePayload(size_t i, bool write) {
    const auto number = static_cast<uint32_t>(i);
    std::vector<Stream> streams = Start(std::span(&number, 1));
    Stream& stream = streams[0];
    is_stored_[i] = stream.payload->bytes != nullptr && stream.unit == 0;
    HAULWAY_TRY(Encode(streams, write));
    if (write) {
      HAULWAY_TRY(Put(stream.payload->offset + stream.written, Rest(stream)));
    }
    return stream.encoder->Finish();
  }

  // Returns the bytes of the payload that are not written yet.
  static std::span<const std::byte> Rest(const Stream& stream) {
    const uint64_t length = stream.payload->length;
    if (stream.written == length) return {};
    return stream.Piece(stream.written, length);
  }

  std::vector<Stream> Start(std::span<const uint32_t> members) const {
    std::vector<Stream> streams;
    streams.reserve(members.size());
    for (const uint32_t i : members) {
      Stream& stream = streams.emplace_back();
      stream.number = i;
      stream.payload = &payloads_[i];
      stream.encoder = layout_.Start(i);
      stream.unit = stream.encoder->unit_bytes();
    }
    return streams;
  }

  // Reads payloads that come from sources. Small ones are read whole, to be
  // digested with others; large ones piece by piece, which are digested and
  // written at once.
  Status PullPayloads(std::span<Stream> streams, bool write) {
    for (Stream& stream : streams) {
      const Payload& payload = *stream.payload;
      if (payload.bytes != nullptr || payload.source == nullptr) continue;
      if (payload.length > traits_.request_bytes) {
        HAULWAY_TRY(PullPiecewise(&stream, write));
        continue;
      }
      stream.pulled.resize(payload.length);
      HAULWAY_TRY(payload.source->ReadAt(payload.source_offset, stream.pulled));
    }
    return Status();
  }

  Status PullPiecewise(Stream* stream, bool write) {
    const Payload& payload = *stream->payload;
    const bool encodes = stream->unit != 0;
    const uint64_t step = encodes ? StepOf(*stream) : traits_.request_bytes;
    std::vector<std::byte> window(step);
    std::vector<std::byte> encoded(encodes ? step : 0);
    while (stream->written < payload.length) {
      const uint64_t at = stream->written;
      const uint64_t bytes = std::min(step, payload.length - at);
      const std::span<std::byte> piece(window.data(), bytes);
      std::span<const std::byte> stored = piece;
      HAULWAY_TRY(payload.source->ReadAt(payload.source_offset + at, piece));
      digesting_.Measure([&] { stream->encoder->Digest(piece); });
      if (encodes) {
        const std::span<std::byte> out(encoded.data(), bytes);
        encoding_.Measure([&] { stream->encoder->Encode(piece, out); });
        stored = out;
      }
      if (write) {
        std::unique_lock turn(turn_, std::defer_lock);
        if (traits_.in_turn) turn.lock();
        HAULWAY_TRY(Put(payload.offset + at, stored));
      }
      HAULWAY_TRY(CheckCancelled());
      stream->written += bytes;
    }
    stream->digested = payload.length;
    return Status();
  }

  // Encodes the payloads that need it one by one, then digests all, a piece of
  // each in turn. If `write`, writes them, except for the ends of payloads that
  // are stored unchanged.
  Status Encode(std::span<Stream> streams, bool write) {
    HAULWAY_TRY(PullPayloads(streams, write));
    HAULWAY_TRY(EncodePayloads(streams, write));
    const uint64_t share =
        std::max(kSmallestShare, kDigestBytes / streams.size());
    std::vector<PayloadEncoder*> encoders;
    std::vector<std::span<const std::byte>> pieces;
    for (bool is_last = false; !is_last;) {
      is_last = true;
      encoders.clear();
      pieces.clear();
      for (Stream& stream : streams) {
        const uint64_t size = stream.payload->length;
        const uint64_t end = std::min(stream.digested + share, size);
        if (end != stream.digested) {
          encoders.push_back(stream.encoder.get());
          pieces.push_back(stream.Piece(stream.digested, end));
        }
        stream.digested = end;
        is_last = is_last && end == size;
      }
      digesting_.Measure([&] { layout_.DigestTogether(encoders, pieces); });
      HAULWAY_TRY(CheckCancelled());
      if (write) HAULWAY_TRY(WriteReady(streams));
    }
    return Status();
  }

  Status EncodePayloads(std::span<Stream> streams, bool write) {
    uint64_t step = 0;
    uint64_t bytes = 0;
    for (const Stream& stream : streams) {
      if (stream.unit == 0 || stream.written == stream.payload->length)
        continue;
      step = std::max(step, StepOf(stream));
      bytes += stream.payload->length;
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
    const Payload& payload = *stream->payload;
    while (stream->written < payload.length) {
      const uint64_t end =
          std::min(stream->written + StepOf(*stream), payload.length);
      const auto piece = stream->Piece(stream->written, end);
      if (piece.size() > ahead->room()) {
        HAULWAY_TRY(WriteEncoded(write, /*wait=*/true, ahead));
      }
      const auto out =
          ahead->Take(payload.offset + stream->written, piece.size());
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

  // Returns the step size: whole units, about as long as a request.
  uint64_t StepOf(const Stream& stream) const {
    return std::max(stream.unit, traits_.request_bytes) / stream.unit *
           stream.unit;
  }

  // Writes the encoded bytes. Does nothing if another thread is writing, unless
  // `wait`.
  Status WriteEncoded(bool write, bool wait, WriteAhead* ahead) {
    std::unique_lock turn(turn_, std::defer_lock);
    if (traits_.in_turn && wait) turn.lock();
    if (traits_.in_turn && !wait && !turn.try_lock()) return Status();
    return ahead->Drain([&](uint64_t offset, std::span<const std::byte> bytes) {
      return write ? Put(offset, bytes) : CheckCancelled();
    });
  }

  // Writes digested bytes up to a file offset that is a multiple of the request
  // size, because file systems keep such ranges together.
  Status WriteDigested(Stream* stream) {
    const uint64_t offset = stream->payload->offset;
    const uint64_t request = traits_.request_bytes;
    while (true) {
      const uint64_t end = ((offset + stream->written) / request + 1) * request;
      if (end > offset + stream->digested) return Status();
      HAULWAY_TRY(Put(offset + stream->written,
                      stream->Piece(stream->written, end - offset)));
      stream->written = end - offset;
    }
  }

  // Writes what other threads left, and the digested bytes of `streams`. Does
  // nothing if another thread is writing, because this one can digest
  // meanwhile.
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
    // Frames, and ends of payloads.
    std::vector<std::pair<uint64_t, std::span<const std::byte>>> rest;
    uint64_t bytes = 0;
    for (Stream& stream : group->streams) {
      if (stream.unit == 0) HAULWAY_TRY(WriteDigested(&stream));
      bytes += stream.payload->length;
      rest.emplace_back(stream.payload->offset + stream.written, Rest(stream));
    }
    for (const EncodedFrame& frame : group->frames) {
      rest.emplace_back(frame.offset, frame.bytes);
    }
    std::ranges::sort(rest, {}, &decltype(rest)::value_type::first);
    std::vector<std::span<const std::byte>> run;  // Adjacent pieces.
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

  const Layout& layout_;
  const std::span<const Payload> payloads_;
  const std::span<const Frame> frames_;
  ByteSink& sink_;
  const WriteOptions& options_;
  const SinkTraits traits_;
  // Each element belongs to the thread that digests the payload, until all are
  // done.
  std::vector<std::vector<std::byte>> digests_;
  std::vector<size_t> frame_of_;  // By payload.
  // By payload, for an ordered sink: it was digested, and memory has its stored
  // form.
  std::vector<bool> is_stored_;
  bool keeps_digests_ = false;  // A frame needs all digests.
  std::mutex turn_;    // Held while writing, if the sink wants writes in turn.
  uint64_t next_ = 0;  // Next offset of an ordered sink.
  std::atomic<uint64_t> requests_{0};
  WorkTime digesting_;
  WorkTime encoding_;
  std::mutex mutex_;
  // Groups that are not completely written.
  std::vector<Group> encoded_ HAULWAY_GUARDED_BY(mutex_);
  std::vector<WriteAhead> spare_ HAULWAY_GUARDED_BY(mutex_);
  uint64_t done_ HAULWAY_GUARDED_BY(mutex_) = 0;
};

}  // namespace

Result<WriteStats> WriteByPayloads(const Layout& layout, ByteSink& sink,
                                   const SinkTraits& traits,
                                   const WriteOptions& options) {
  return PayloadWriter(layout, sink, traits, options).Run();
}

}  // namespace haulway
