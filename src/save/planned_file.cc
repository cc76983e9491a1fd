#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/checked.h"
#include "base/digest.h"
#include "base/thread_pool.h"
#include "haulway/layout.h"
#include "haulway/machine.h"
#include "haulway/options.h"
#include "haulway/source.h"
#include "save/write_measure.h"

namespace haulway {

namespace {

constexpr uint64_t kPieceBytes = kMiB;

class File : public PlannedFile {
 public:
  File(std::shared_ptr<const Layout> layout, std::string path,
       FileSinkOptions options)
      : layout_(std::move(layout)), path_(std::move(path)), options_(options) {}

  Status Open() {
    if (layout_->digesting() == Digesting::kInOrder) {
      return Status(Code::kUnsupported,
                    "a file that others fill cannot digest in order");
    }
    options_.direct = false;  // Other processes write to the file too.
    options_.temporary = &temporary_;
    HAULWAY_ASSIGN(sink_, OpenFileSink(path_, options_));
    // Without a size, nothing is allocated, so the file is sparse.
    measured_.emplace(sink_.get());
    HAULWAY_ASSIGN(const SinkTraits traits, measured_->Begin(std::nullopt));
    if (traits.ordered) {
      return Status(Code::kUnsupported,
                    fmt::format("cannot lay out a file on {}", path_));
    }
    // Write the last byte, to give the file its final size.
    static constexpr std::byte kZero{};
    if (layout_->size() != 0) {
      HAULWAY_TRY(sink_->WriteAt(layout_->size() - 1, {&kZero, 1}));
    }
    for (const Payload& payload : layout_->payloads()) {
      HAULWAY_TRY(WriteKnown(payload));
    }
    return Status();
  }

  const std::string& temporary_path() const override { return temporary_; }

  Status Fill(size_t payload, uint64_t offset,
              std::span<const std::byte> bytes) override {
    if (payload >= layout_->payloads().size() ||
        !RangeFits(offset, bytes.size(), layout_->payloads()[payload].length)) {
      return Status(
          Code::kInvalidArgument,
          fmt::format("{} bytes from byte {} on end behind the payload",
                      bytes.size(), offset));
    }
    if (!layout_->payloads()[payload].is_hole() && !bytes.empty()) {
      return Status(Code::kInvalidArgument,
                    "the payload is known, and not for others to fill");
    }
    return Write(layout_->payloads()[payload].offset + offset, bytes);
  }

  Result<WriteStats> Commit(const WriteOptions& options) override {
    WorkTime committing;
    WorkTime digesting;
    WriteStats stats;
    stats.threads = options.threads > 0 ? options.threads : UsableCpus();
    HAULWAY_TRY(committing.Measure(
        [&] { return CommitOn(stats.threads, options, &digesting); }));
    measured_->Record(&stats);
    stats.bytes = layout_->size();
    for (const Payload& payload : layout_->payloads()) {
      stats.tensor_bytes += payload.length;
    }
    stats.requests = requests_.load();
    stats.seconds = committing.seconds();
    stats.digest_seconds = digesting.seconds();
    return stats;
  }

 private:
  Status WriteKnown(const Payload& payload) {
    if (payload.is_hole() || payload.length == 0) return Status();
    if (payload.bytes != nullptr) {
      return Write(payload.offset, {payload.bytes, payload.length});
    }
    std::vector<std::byte> piece(std::min(kPieceBytes, payload.length));
    for (uint64_t at = 0; at < payload.length; at += kPieceBytes) {
      piece.resize(std::min<uint64_t>(piece.size(), payload.length - at));
      HAULWAY_TRY(payload.source->ReadAt(payload.source_offset + at, piece));
      HAULWAY_TRY(Write(payload.offset + at, piece));
    }
    return Status();
  }

  Status Write(uint64_t offset, std::span<const std::byte> bytes) {
    requests_.fetch_add(1, std::memory_order_relaxed);
    return measured_->WriteAt(offset, bytes);
  }

  Status CommitOn(int threads, const WriteOptions& options,
                  WorkTime* digesting) {
    HAULWAY_ASSIGN(const std::vector<uint32_t> crc32,
                   Digest(threads, options, digesting));
    const std::span<const Frame> frames = layout_->frames();
    std::vector<std::byte> bytes;
    for (size_t i = 0; i < frames.size(); ++i) {
      bytes.resize(frames[i].length);
      HAULWAY_TRY(layout_->EncodeFrame(i, {crc32, {}}, bytes));
      HAULWAY_TRY(Write(frames[i].offset, bytes));
    }
    return measured_->Commit(layout_->size());
  }

  // Computes the CRC-32 of every payload from the file.
  Result<std::vector<uint32_t>> Digest(int threads, const WriteOptions& options,
                                       WorkTime* digesting) const {
    const std::span<const Payload> payloads = layout_->payloads();
    std::vector<uint32_t> crc32(payloads.size());
    if (layout_->digesting() != Digesting::kCrc32) return crc32;
    HAULWAY_ASSIGN(const auto source, OpenFileSource(temporary_));
    struct Piece {
      size_t payload;
      uint64_t offset, length;
      uint32_t crc32;
    };
    std::vector<Piece> pieces;
    uint64_t total = 0;
    for (size_t i = 0; i < payloads.size(); ++i) {
      total += payloads[i].length;
      for (uint64_t at = 0; at < payloads[i].length; at += kPieceBytes) {
        pieces.push_back({i, payloads[i].offset + at,
                          std::min(kPieceBytes, payloads[i].length - at), 0});
      }
    }
    HAULWAY_TRY(ParallelFor(pieces.size(), threads, [&](uint64_t p) -> Status {
      if (options.cancel != nullptr && options.cancel->load()) {
        return Status(Code::kCancelled, "writing was cancelled");
      }
      Piece& piece = pieces[p];
      return digesting->Measure([&]() -> Status {
        HAULWAY_ASSIGN(const Buffer bytes, AllocateBuffer(piece.length));
        HAULWAY_TRY(source->ReadAt(piece.offset, bytes.mutable_bytes()));
        piece.crc32 = Crc32(0, bytes.bytes());
        return Status();
      });
    }));
    for (const Piece& piece : pieces) {
      uint32_t& crc = crc32[piece.payload];
      crc = Crc32Join(crc, piece.crc32, piece.length);
    }
    if (options.progress) options.progress(total, total);
    return crc32;
  }

  const std::shared_ptr<const Layout> layout_;
  const std::string path_;
  FileSinkOptions options_;
  std::string temporary_;
  std::unique_ptr<ByteSink> sink_;
  std::optional<MeasuredSink> measured_;  // Wraps sink_.
  std::atomic<uint64_t> requests_{0};
};

}  // namespace

Result<std::unique_ptr<PlannedFile>> PlannedFile::Create(
    std::shared_ptr<const Layout> layout, std::string path,
    const FileSinkOptions& options) {
  if (layout == nullptr) {
    return Status(Code::kInvalidArgument, "layout is null").Of(path);
  }
  auto file = std::make_unique<File>(std::move(layout), path, options);
  Status status = file->Open();
  if (!status.ok()) return std::move(status).Of(path);
  return std::unique_ptr<PlannedFile>(std::move(file));
}

}  // namespace haulway
