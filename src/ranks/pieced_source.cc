// Design: each request becomes runs: bytes that follow one another both in a
// piece and in its tensor. Runs are sorted by file position and merged into few
// reads. Then the replicas of what was read are read into separate memory, a
// few MiB at a time, and compared.
//
// If the innermost dimension of a piece is not dense in the file, as that of a
// transposed tensor, or a single element, a range that holds what is wanted is
// read, and the elements are copied one by one. A piece that is wanted whole is
// kept for the next read.

#include "ranks/pieced_source.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <tuple>

#include "base/checked.h"
#include "base/digest.h"
#include "base/text.h"
#include "haulway/options.h"
#include "io/join_ranges.h"
#include "tensor/rectangle_runs.h"
#include "tensor/strided.h"

namespace haulway::ranks {

namespace {

constexpr uint64_t kAlignment = 64;
constexpr uint64_t kSmallestStraight = 64 * kKiB;
constexpr uint64_t kHole = 4 * kKiB;
constexpr uint64_t kMostJoined = 4 * kMiB;
constexpr uint64_t kMostScratch = 16 * kMiB;
constexpr uint64_t kCompared = 8 * kMiB;  // At a time.
constexpr uint64_t kDigested = 1 * kMiB;
constexpr uint8_t kFrameChecked = 1;
constexpr uint8_t kDigestChecked = 2;

// Bytes of a file, and their destination.
struct ByteRun {
  uint32_t file = 0;
  uint32_t storage = 0;
  uint64_t offset = 0;  // In the source of the file.
  std::span<std::byte> out;
};

// Returns how a piece lies in its tensor.
RectangleRuns RunsOf(const PiecedTensor& tensor, const Piece& piece) {
  return RectangleRuns(tensor.item_bytes, tensor.shape, piece.begin,
                       piece.sizes, piece.strides);
}

}  // namespace

// The reads that some requests need.
class PieceReads {
 public:
  explicit PieceReads(const PiecedSource& source) : source_(source) {}

  Status Add(const ReadRequest& request) {
    if (!RangeFits(request.offset, request.out.size(), source_.size_)) {
      return Status(Code::kTruncated, "read ends past the source")
          .At(request.offset);
    }
    uint64_t at = request.offset;
    std::span<std::byte> out = request.out;
    const auto& starts = source_.starts_;
    auto t = static_cast<size_t>(std::ranges::upper_bound(starts, at) -
                                 starts.begin());
    if (t > 0) --t;
    while (!out.empty()) {
      const bool is_after = t >= starts.size();
      // Bytes between two tensors are zeros.
      const uint64_t start = is_after ? source_.size_ : starts[t];
      if (at < start) {
        const uint64_t gap = std::min<uint64_t>(start - at, out.size());
        std::memset(out.data(), 0, gap);
        at += gap;
        out = out.subspan(gap);
        continue;
      }
      if (is_after) break;
      const uint64_t within = at - start;
      const uint64_t held = source_.bytes_[t];
      if (within < held) {
        const uint64_t length = std::min<uint64_t>(held - within, out.size());
        parts_.push_back({static_cast<uint32_t>(t), within, out.first(length)});
        at += length;
        out = out.subspan(length);
      }
      ++t;
    }
    return Status();
  }

  Status Run() {
    for (const Part& part : parts_) {
      HAULWAY_TRY(source_.CheckWhole(part.tensor));
      const PiecedTensor& tensor = source_.tensors_[part.tensor];
      for (const Piece& piece : tensor.pieces) {
        HAULWAY_TRY(AddPiece(tensor, piece, part));
      }
    }
    HAULWAY_TRY(ReadRuns(std::move(runs_)));
    for (const Part& part : parts_) {
      for (const Piece& piece : source_.tensors_[part.tensor].replicas) {
        HAULWAY_TRY(Compare(part, piece));
      }
    }
    return Status();
  }

 private:
  // A range of a tensor that a caller wants.
  struct Part {
    uint32_t tensor;
    uint64_t begin;
    std::span<std::byte> out;
  };

  static std::string NameOf(const PiecedTensor& tensor) {
    return Quote(tensor.name);
  }

  uint64_t OffsetOf(const Piece& piece, uint64_t stored_at) const {
    const RankFile& file = source_.files_[piece.file];
    return file.reader->index().storages[piece.storage].offset + stored_at;
  }

  // Adds the runs of a piece that the part wants.
  Status AddPiece(const PiecedTensor& tensor, const Piece& piece,
                  const Part& part) {
    const RectangleRuns runs = RunsOf(tensor, piece);
    const uint64_t end = part.begin + part.out.size();
    if (runs.is_scattered()) return AddScattered(tensor, piece, runs, part);
    runs.ForEach(
        part.begin, end,
        [&](uint64_t number, uint64_t skipped, uint64_t from, uint64_t length) {
          runs_.push_back(
              {piece.file, piece.storage,
               OffsetOf(piece, piece.offset + runs.StoredAt(number)) + skipped,
               part.out.subspan(from, length)});
          return true;
        });
    return Status();
  }

  // Copies the elements of a piece that the part wants, one by one.
  Status AddScattered(const PiecedTensor& tensor, const Piece& piece,
                      const RectangleRuns& runs, const Part& part) {
    const uint64_t end = part.begin + part.out.size();
    uint64_t first = UINT64_MAX;
    uint64_t last = 0;
    runs.ForEach(part.begin, end,
                 [&](uint64_t number, uint64_t, uint64_t, uint64_t) {
                   const uint64_t at = runs.StoredAt(number);
                   first = std::min(first, at);
                   last = std::max(last, at + tensor.item_bytes);
                   return true;
                 });
    if (first == UINT64_MAX) return Status();
    HAULWAY_ASSIGN(const PiecedSource::Stored stored,
                   ReadStored(tensor, piece, first, last));
    runs.ForEach(
        part.begin, end,
        [&](uint64_t number, uint64_t skipped, uint64_t from, uint64_t length) {
          const uint64_t at = runs.StoredAt(number) - stored.first + skipped;
          std::memcpy(part.out.data() + from, stored.bytes->data() + at,
                      length);
          return true;
        });
    return Status();
  }

  // Returns at least the bytes [first, last) from a piece's first element on.
  // If they are most of the piece, it is read and kept.
  Result<PiecedSource::Stored> ReadStored(const PiecedTensor& tensor,
                                          const Piece& piece, uint64_t first,
                                          uint64_t last) const {
    {
      const std::lock_guard lock(source_.mutex_);
      if (source_.kept_.piece == &piece) return source_.kept_;
    }
    // The piece lies within its storage: that was checked when it was made.
    const uint64_t whole =
        ElementExtent(piece.sizes, piece.strides).value_or(0) *
        tensor.item_bytes;
    const bool is_kept = last - first > whole / 4;
    if (is_kept) {
      first = 0;
      last = whole;
    }
    const auto bytes = std::make_shared<std::vector<std::byte>>(last - first);
    HAULWAY_TRY(ReadRuns({{piece.file, piece.storage,
                           OffsetOf(piece, piece.offset + first), *bytes}}));
    const PiecedSource::Stored stored{&piece, first, bytes};
    if (is_kept) {
      const std::lock_guard lock(source_.mutex_);
      source_.kept_ = stored;
    }
    return stored;
  }

  // Compares what was read with a replica.
  Status Compare(const Part& part, const Piece& replica) {
    const PiecedTensor& tensor = source_.tensors_[part.tensor];
    std::vector<std::byte> scratch;
    uint64_t at = 0;
    while (at < part.out.size()) {
      const uint64_t length =
          std::min<uint64_t>(part.out.size() - at, kCompared);
      const auto expected = part.out.subspan(at, length);
      // What the replica lacks stays as it is.
      scratch.assign(expected.begin(), expected.end());
      runs_.clear();
      HAULWAY_TRY(
          AddPiece(tensor, replica, {part.tensor, part.begin + at, scratch}));
      HAULWAY_TRY(ReadRuns(std::exchange(runs_, {})));
      const auto [differs, found] = std::ranges::mismatch(expected, scratch);
      if (differs != expected.end()) {
        return Differ(tensor, replica,
                      part.begin + at +
                          static_cast<uint64_t>(differs - expected.begin()));
      }
      at += length;
    }
    return Status();
  }

  // `at`: the byte of the tensor that differs.
  Status Differ(const PiecedTensor& tensor, const Piece& replica,
                uint64_t at) const {
    uint64_t first = 0;
    for (const Piece& piece : tensor.pieces) {
      RunsOf(tensor, piece)
          .ForEach(at, at + 1, [&](uint64_t, uint64_t, uint64_t, uint64_t) {
            first = source_.files_[piece.file].rank;
            return false;
          });
    }
    return Status(Code::kMismatch,
                  fmt::format("ranks {} and {} saved different values of one "
                              "tensor, from element {} on: 'first' of the "
                              "option replicas, which load and convert have, "
                              "takes those of the first rank",
                              first, source_.files_[replica.file].rank,
                              at / tensor.item_bytes))
        .In(NameOf(tensor));
  }

  Status ReadRuns(std::vector<ByteRun> runs) const {
    const auto place = [](const ByteRun& run) {
      return std::tuple(run.file, run.offset);
    };
    if (!std::ranges::is_sorted(runs, {}, place)) {
      std::ranges::sort(runs, {}, place);
    }
    for (size_t first = 0; first < runs.size();) {
      size_t end = first;
      while (end < runs.size() && runs[end].file == runs[first].file) ++end;
      const RankFile& file = source_.files_[runs[first].file];
      Status status =
          ReadFile(file, std::span(runs).subspan(first, end - first));
      if (!status.ok()) return std::move(status).Of(file.name);
      first = end;
    }
    return Status();
  }

  Status ReadFile(const RankFile& file, std::span<const ByteRun> runs) const {
    HAULWAY_TRY(CheckFrames(file, runs));
    const ByteSource& source = *file.reader->source();
    const SourceTraits traits = source.Look({});
    std::vector<ReadRequest> requests;
    requests.reserve(runs.size());
    for (const ByteRun& run : runs) requests.push_back({run.offset, run.out});
    return ReadJoined(source, std::move(requests),
                      {.limits = {.largest_hole = LargestHole(traits, kHole),
                                  .largest_read = kMostJoined},
                       .direct_from = kSmallestStraight,
                       .most_memory = kMostScratch,
                       .limits_waste = !traits.is_server()});
  }

  // Checks the frames of storages that were not read before.
  Status CheckFrames(const RankFile& file,
                     std::span<const ByteRun> runs) const {
    auto& checked = source_.checked_[runs[0].file];
    const FormatReader& reader = *file.reader;
    std::vector<uint32_t> storages;
    for (const ByteRun& run : runs) {
      if ((checked[run.storage].load(std::memory_order_acquire) &
           kFrameChecked) == 0 &&
          (storages.empty() || storages.back() != run.storage)) {
        storages.push_back(run.storage);
      }
    }
    std::ranges::sort(storages);
    const auto rest = std::ranges::unique(storages);
    storages.erase(rest.begin(), rest.end());
    if (storages.empty()) return Status();
    uint64_t bytes = 0;
    for (const uint32_t row : storages) {
      const StorageInfo& info = reader.index().storages[row];
      bytes += info.frame_end - info.frame_offset - info.stored_bytes;
    }
    std::vector<std::byte> frames(bytes);
    std::vector<ReadRequest> requests;
    uint64_t at = 0;
    const auto add = [&](uint64_t offset, uint64_t length) {
      requests.push_back({offset, std::span(frames).subspan(at, length)});
      at += length;
    };
    for (const uint32_t row : storages) {
      const StorageInfo& info = reader.index().storages[row];
      const uint64_t end = info.offset + info.stored_bytes;
      add(info.frame_offset, info.offset - info.frame_offset);
      add(end, info.frame_end - end);
    }
    HAULWAY_TRY(reader.source()->ReadMany(requests));
    for (size_t i = 0; i < storages.size(); ++i) {
      HAULWAY_TRY(reader.CheckFrame(storages[i], requests[2 * i].out,
                                    requests[2 * i + 1].out));
      checked[storages[i]].fetch_or(kFrameChecked, std::memory_order_release);
    }
    return Status();
  }

  const PiecedSource& source_;
  std::vector<Part> parts_;
  std::vector<ByteRun> runs_;
};

PiecedSource::PiecedSource(std::vector<RankFile> files,
                           std::vector<PiecedTensor> tensors,
                           std::shared_ptr<const ByteSource> beside)
    : files_(std::move(files)),
      tensors_(std::move(tensors)),
      beside_(std::move(beside)) {
  for (const RankFile& file : files_) {
    checked_.emplace_back(file.reader->index().storages.size());
  }
  for (const PiecedTensor& tensor : tensors_) {
    uint64_t bytes = tensor.item_bytes;
    for (const int64_t size : tensor.shape)
      bytes *= static_cast<uint64_t>(size);
    starts_.push_back(size_);
    bytes_.push_back(bytes);
    size_ = (size_ + bytes + kAlignment - 1) / kAlignment * kAlignment;
  }
}

Status PiecedSource::ReadAt(uint64_t offset, std::span<std::byte> out) const {
  const ReadRequest request{offset, out};
  return ReadMany({&request, 1});
}

Status PiecedSource::ReadMany(std::span<const ReadRequest> requests) const {
  PieceReads reads(*this);
  for (const ReadRequest& request : requests) HAULWAY_TRY(reads.Add(request));
  return reads.Run();
}

SourceTraits PiecedSource::Look(std::span<const ByteRange>) const {
  return files_.front().reader->source()->Look({}).Gathered();
}

std::optional<RemoteStats> PiecedSource::remote_stats() const {
  return beside_->remote_stats();
}

Status PiecedSource::CheckWhole(uint32_t tensor) const {
  const PiecedTensor& one = tensors_[tensor];
  if (one.missing.empty()) return Status();
  return Status(Code::kMismatch,
                fmt::format("file {} is missing, and the others do not hold "
                            "the whole tensor",
                            Quote(one.missing)))
      .In(Quote(one.name));
}

Status PiecedSource::CheckDigests(uint32_t tensor) const {
  for (const Piece& piece : tensors_[tensor].pieces) {
    HAULWAY_TRY(CheckDigest(piece));
  }
  for (const Piece& piece : tensors_[tensor].replicas) {
    HAULWAY_TRY(CheckDigest(piece));
  }
  return Status();
}

Status PiecedSource::CheckDigest(const Piece& piece) const {
  const RankFile& file = files_[piece.file];
  const StorageInfo& info = file.reader->index().storages[piece.storage];
  auto& checked = checked_[piece.file][piece.storage];
  if (!info.crc32.has_value() ||
      (checked.load(std::memory_order_acquire) & kDigestChecked) != 0) {
    return Status();
  }
  uint32_t crc32 = 0;
  std::vector<std::byte> bytes;
  for (uint64_t at = 0; at < info.nbytes; at += bytes.size()) {
    bytes.resize(std::min(kDigested, info.nbytes - at));
    Status status = file.reader->source()->ReadAt(info.offset + at, bytes);
    if (!status.ok()) return std::move(status).Of(file.name);
    crc32 = Crc32(crc32, bytes);
  }
  if (crc32 != *info.crc32) {
    return Status(Code::kMismatch,
                  fmt::format("CRC-32 of storage {} differs: expected {:08x}, "
                              "found {:08x}",
                              Quote(info.key), *info.crc32, crc32))
        .At(info.offset)
        .Of(file.name);
  }
  checked.fetch_or(kDigestChecked, std::memory_order_release);
  return Status();
}

}  // namespace haulway::ranks
