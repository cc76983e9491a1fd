// Design: each request becomes runs. A run is a piece of a chunk's data and its
// destination in memory. Runs are sorted by file position and merged into few
// reads: long ones go directly into their memory, short ones together with
// their neighbours, and heads of archives that were not read yet together with
// the data behind them. The head determines where the data begins; if that is
// not where it was expected, the chunk is read again.
//
// A chunk that an extension compressed has no ranges that could be read alone:
// its runs are read through a cursor (dcp_chunk_cursors.h), which goes on where
// the last read of the chunk ended.
//
// If a chunk's elements are reordered, as those of transposed tensors, the
// piece is read in file order into separate memory, and copied from there
// (dcp_order.h).
//
// Alternatives not taken: making each chunk a storage that the engine knows.
// Everywhere else a tensor is one storage, and every way of loading would have
// to handle tensors in pieces. Locating all data on opening would take a
// request per chunk.

#include "dcp/dcp_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <tuple>
#include <utility>

#include "base/checked.h"
#include "base/text.h"
#include "dcp/dcp_archive.h"
#include "dcp/dcp_item.h"
#include "dcp/dcp_metadata.h"
#include "dcp/dcp_order.h"
#include "io/join_ranges.h"
#include "tensor/rectangle_runs.h"

namespace haulway::dcp {

namespace {

constexpr uint64_t kAlignment = 64;
// Where torch puts the data of most chunks.
constexpr uint64_t kUsualPayload = 704;
// Bytes to read of an archive whose head is longer than expected.
constexpr uint64_t kHeadBytes = 4 * kKiB;
constexpr uint64_t kLongestHead = 1 * kMiB;
// Runs of at least this size are read directly into their memory.
constexpr uint64_t kSmallestStraight = 64 * kKiB;
constexpr uint64_t kMostJoined = 8 * kMiB;
// Compressed items of up to this size are read whole, with their neighbours.
constexpr uint64_t kSmallItem = 1 * kMiB;
constexpr uint64_t kSmallItems = 16 * kMiB;
// The data's position is not known.
constexpr uint64_t kUnknown = UINT64_MAX;
// Flag in the payload's offset for data that is not row-major.
constexpr uint64_t kReordered = uint64_t{1} << 63;

bool IsInOtherOrder(uint64_t payload) {
  return payload != kUnknown && (payload & kReordered) != 0;
}

}  // namespace

uint64_t BytesOf(const StoredTensor& tensor, const Chunk& chunk) {
  uint64_t bytes = ItemBytes(tensor.dtype);
  for (const int64_t size : chunk.sizes) bytes *= static_cast<uint64_t>(size);
  return bytes;
}

// The reads that some requests need.
class ChunkReads {
 public:
  explicit ChunkReads(const ChunkSource& source) : source_(source) {}

  Status Add(const ReadRequest& request) {
    if (!RangeFits(request.offset, request.out.size(), source_.size_)) {
      return Status(Code::kTruncated, "read ends past the source")
          .At(request.offset);
    }
    uint64_t at = request.offset;
    std::span<std::byte> out = request.out;
    const auto& regions = source_.regions_;
    size_t r = static_cast<size_t>(
        std::ranges::upper_bound(regions, at, {}, &ChunkSource::Region::start) -
        regions.begin());
    if (r > 0) --r;
    for (; !out.empty(); ++r) {
      // The bytes between two regions are zeros.
      const uint64_t start = r < regions.size() ? regions[r].start : UINT64_MAX;
      if (at < start) {
        const uint64_t gap = std::min<uint64_t>(start - at, out.size());
        std::memset(out.data(), 0, gap);
        at += gap;
        out = out.subspan(gap);
      }
      if (out.empty() || r >= regions.size()) break;
      const uint64_t within = at - start;
      if (within >= regions[r].nbytes) continue;
      const uint64_t length =
          std::min<uint64_t>(regions[r].nbytes - within, out.size());
      AddRegion(regions[r], within, out.first(length));
      at += length;
      out = out.subspan(length);
    }
    return Status();
  }

  Status Run() {
    const auto is_done = [](const ChunkRun& run) { return run.is_done; };
    for (int round = 0; !runs_.empty(); ++round) {
      AddReordered();
      SortRuns();
      std::vector<ChunkRun> transformed = TakeTransformed();
      HAULWAY_TRY(ReadTransformed(transformed));
      HAULWAY_TRY(ReadRound(round));
      std::erase_if(runs_, is_done);
      std::ranges::remove_copy_if(transformed, std::back_inserter(runs_),
                                  is_done);
    }
    for (const Reordered& one : reordered_) PlaceReordered(one);
    return Status();
  }

 private:
  // A range of the data of a chunk, or of an item, and its destination.
  struct ChunkRun {
    StoredItem item;
    uint32_t chunk = kNoFile;  // Row of the metadata; kNoFile for an item.
    uint32_t tensor = 0;
    uint64_t offset = 0;  // Offset in the chunk's data, or in the item.
    std::span<std::byte> out;
    bool is_done = false;
    bool is_as_stored = false;  // The data is wanted in stored order.
  };

  // A run of a reordered chunk, read into separate memory.
  struct Reordered {
    uint64_t item_bytes = 0;
    std::vector<ElementBox> boxes;
    std::vector<std::byte> data;  // The data of all boxes, concatenated.
    // Bytes of the first element that precede `out`.
    uint64_t skipped = 0;
    std::span<std::byte> out;
  };

  void AddRegion(const ChunkSource::Region& region, uint64_t within,
                 std::span<std::byte> out) {
    if (region.tensor == kNoFile) {
      runs_.push_back({region.item, kNoFile, 0, within, out});
      return;
    }
    const StoredTensor& tensor = source_.metadata_.tensors[region.tensor];
    if (tensor.chunk_count == 1) {
      runs_.push_back({source_.metadata_.chunks[tensor.first_chunk].item,
                       tensor.first_chunk, region.tensor, within, out});
      return;
    }
    for (uint32_t c = 0; c < tensor.chunk_count; ++c) {
      const uint32_t row = tensor.first_chunk + c;
      const Chunk& chunk = source_.metadata_.chunks[row];
      if (!IsEmpty(chunk)) AddChunk(region.tensor, row, chunk, within, out);
    }
  }

  // Adds the parts of [begin, begin + out.size()) of a tensor that are in a
  // chunk.
  void AddChunk(uint32_t tensor_row, uint32_t row, const Chunk& chunk,
                uint64_t begin, std::span<std::byte> out) {
    const StoredTensor& tensor = source_.metadata_.tensors[tensor_row];
    const RectangleRuns runs(ItemBytes(tensor.dtype), tensor.shape,
                             chunk.offsets, chunk.sizes, {});
    runs.ForEach(
        begin, begin + out.size(),
        [&](uint64_t number, uint64_t skipped, uint64_t from, uint64_t length) {
          runs_.push_back({chunk.item, row, tensor_row,
                           runs.StoredAt(number) + skipped,
                           out.subspan(from, length)});
          return true;
        });
  }

  // Returns where the data of the run's chunk begins; kUnknown if not known.
  uint64_t Known(const ChunkRun& run) const {
    if (run.chunk == kNoFile) return 0;
    const uint64_t payload =
        source_.payloads_[run.chunk].load(std::memory_order_acquire);
    return run.is_as_stored ? payload & ~kReordered : payload;
  }

  // Replaces the runs of reordered chunks by runs of their stored data.
  void AddReordered() {
    const auto is_reordered = [&](const ChunkRun& run) {
      return IsInOtherOrder(Known(run));
    };
    if (std::ranges::none_of(runs_, is_reordered)) return;
    const std::vector<ChunkRun> runs = std::exchange(runs_, {});
    for (const ChunkRun& run : runs) {
      if (is_reordered(run)) {
        AddReordered(run);
      } else {
        runs_.push_back(run);
      }
    }
  }

  void AddReordered(const ChunkRun& run) {
    const Chunk& chunk = source_.metadata_.chunks[run.chunk];
    const uint64_t item =
        ItemBytes(source_.metadata_.tensors[run.tensor].dtype);
    const uint64_t begin = run.offset / item;
    const uint64_t end = (run.offset + run.out.size() + item - 1) / item;
    Reordered& one = reordered_.emplace_back();
    one.item_bytes = item;
    one.boxes = BoxesOf(chunk.sizes, source_.StridesOf(run.chunk), begin, end);
    one.data.resize((end - begin) * item);
    one.skipped = run.offset - begin * item;
    one.out = run.out;
    std::span<std::byte> rest = one.data;
    for (const ElementBox& box : one.boxes) {
      ForEachRun(box, [&](uint64_t first, uint64_t count) {
        ChunkRun stored = run;
        stored.is_as_stored = true;
        stored.offset = first * item;
        stored.out = rest.first(count * item);
        rest = rest.subspan(count * item);
        runs_.push_back(stored);
      });
    }
  }

  static void PlaceReordered(const Reordered& one) {
    std::vector<std::byte> placed(one.data.size());
    uint64_t at = 0;
    for (const ElementBox& box : one.boxes) {
      const uint64_t bytes = CountOf(box) * one.item_bytes;
      PlaceBox(box, one.item_bytes, std::span(one.data).subspan(at, bytes),
               std::span(placed).subspan(at, bytes));
      at += bytes;
    }
    std::memcpy(one.out.data(), placed.data() + one.skipped, one.out.size());
  }

  void SortRuns() {
    const auto place = [](const ChunkRun& run) {
      return std::tuple(run.item.file, run.item.offset, run.offset);
    };
    if (!std::ranges::is_sorted(runs_, {}, place)) {
      std::ranges::sort(runs_, {}, place);
    }
  }

  // Removes the runs of chunks that an extension transformed, and returns them.
  std::vector<ChunkRun> TakeTransformed() {
    std::vector<ChunkRun> transformed;
    if (!source_.has_transforms_) return transformed;
    const auto is_transformed = [](const ChunkRun& run) {
      return !run.item.transforms.empty();
    };
    std::ranges::copy_if(runs_, std::back_inserter(transformed),
                         is_transformed);
    std::erase_if(runs_, is_transformed);
    return transformed;
  }

  // Reads runs of transformed chunks, chunk by chunk.
  Status ReadTransformed(std::span<ChunkRun> runs) {
    while (!runs.empty()) {
      const auto next = TogetherOf(runs);
      runs = runs.subspan(next.size());
      Status status = next.front().item.length <= kSmallItem
                          ? ReadSmallItems(next)
                          : ReadLargeItem(next);
      if (!status.ok()) {
        return std::move(status).In(
            fmt::format("data file {}",
                        Quote(source_.files_.name(next.front().item.file))));
      }
    }
    return Status();
  }

  // Returns the runs of the first chunk, with those of the chunks after it if
  // their items are small.
  static std::span<ChunkRun> TogetherOf(std::span<ChunkRun> runs) {
    size_t end = 0;
    uint64_t bytes = 0;
    while (end < runs.size() && runs[end].item.file == runs[0].item.file) {
      const size_t first = end;
      const uint64_t length = runs[first].item.length;
      if (first != 0 && (runs[0].item.length > kSmallItem ||
                         length > kSmallItem || bytes + length > kSmallItems)) {
        break;
      }
      end = EndOfChunk(runs, first);
      bytes += length;
    }
    return runs.first(end);
  }

  static size_t EndOfChunk(std::span<const ChunkRun> runs, size_t first) {
    size_t end = first;
    while (end < runs.size() && runs[end].chunk == runs[first].chunk) ++end;
    return end;
  }

  Status ReadSmallItems(std::span<ChunkRun> runs) {
    HAULWAY_ASSIGN(const auto file, source_.files_.Open(runs[0].item.file));
    uint64_t total = 0;
    for (size_t i = 0; i < runs.size(); i = EndOfChunk(runs, i)) {
      HAULWAY_TRY(CheckItem(runs[i], file->size()));
      total += runs[i].item.length;
    }
    std::vector<std::byte> memory(total);
    std::vector<ReadRequest> requests;
    uint64_t at = 0;
    for (size_t i = 0; i < runs.size(); i = EndOfChunk(runs, i)) {
      const StoredItem& item = runs[i].item;
      requests.push_back(
          {item.offset, std::span(memory).subspan(at, item.length)});
      at += item.length;
    }
    HAULWAY_TRY(Read(*file, requests));
    const ReadRequest* read = requests.data();
    for (size_t i = 0; i < runs.size(); ++read) {
      const size_t end = EndOfChunk(runs, i);
      StoredItem item = runs[i].item;
      item.offset = 0;
      ChunkCursor cursor(MakeMemorySource(read->out), item, BytesOf(runs[i]));
      HAULWAY_TRY(ReadChunk(runs.subspan(i, end - i), cursor));
      i = end;
    }
    return Status();
  }

  Status ReadLargeItem(std::span<ChunkRun> runs) {
    const ChunkRun& run = runs.front();
    HAULWAY_ASSIGN(const auto file, source_.files_.Open(run.item.file));
    HAULWAY_TRY(CheckItem(run, file->size()));
    const auto cursor = source_.cursors_.Take(run.chunk, [&] {
      return std::make_shared<ChunkCursor>(file, run.item, BytesOf(run));
    });
    std::unique_lock lock(cursor->mutex);
    Status status = ReadChunk(runs, *cursor);
    const uint64_t kept = cursor->kept_bytes();
    const bool is_done = !status.ok() || cursor->is_checked();
    lock.unlock();
    source_.cursors_.Return(run.chunk, kept, is_done);
    return status;
  }

  // Reads runs of one chunk. Those of a chunk whose elements are reordered,
  // which only its archive says, are left for the next round.
  Status ReadChunk(std::span<ChunkRun> runs, ChunkCursor& cursor) {
    const ChunkRun& run = runs.front();
    uint64_t payload = Known(run);
    if (payload == kUnknown) {
      auto found = FindTransformed(run, cursor);
      if (!found.ok()) return Place(std::move(found).status(), run);
      payload = *found;
    }
    if (IsInOtherOrder(payload)) return Status();
    std::vector<ReadRequest> ranges;
    ranges.reserve(runs.size());
    for (const ChunkRun& one : runs) ranges.push_back({one.offset, one.out});
    HAULWAY_TRY(Place(cursor.Read(payload, ranges), run));
    for (ChunkRun& one : runs) one.is_done = true;
    return Status();
  }

  Result<uint64_t> FindTransformed(const ChunkRun& run, ChunkCursor& cursor) {
    const uint64_t most = MostOfTensor(BytesOf(run)).bytes;
    // The cursor holds what is decoded of the head.
    const uint64_t longest = std::min(most, kLongestHead);
    for (uint64_t bytes = kHeadBytes; true; bytes *= 4) {
      HAULWAY_ASSIGN(const auto head, cursor.Head(std::min(bytes, longest)));
      const bool is_all = head.size() < bytes;
      HAULWAY_ASSIGN(const auto found,
                     ParseArchiveHead(head, is_all ? head.size() : most));
      if (found.has_value()) return NotePayload(run, *found, most);
      if (is_all) {
        return Status(Code::kCorrupt, "chunk is no archive with a tensor");
      }
    }
  }

  Status ReadRound(int round) {
    for (size_t first = 0; first < runs_.size();) {
      size_t end = first;
      while (end < runs_.size() &&
             runs_[end].item.file == runs_[first].item.file) {
        ++end;
      }
      const uint32_t file = runs_[first].item.file;
      Status status =
          ReadFile(std::span(runs_).subspan(first, end - first), round);
      if (!status.ok()) {
        return std::move(status).In(
            fmt::format("data file {}", Quote(source_.files_.name(file))));
      }
      first = end;
    }
    return Status();
  }

  Status ReadFile(std::span<ChunkRun> runs, int round) {
    HAULWAY_ASSIGN(const auto file, source_.files_.Open(runs[0].item.file));
    const uint64_t guess =
        source_.usual_payload_.load(std::memory_order_relaxed);
    // In the first round, expect the data at its usual position.
    uint64_t head_bytes = guess;
    if (round > 0)
      head_bytes = std::min(kHeadBytes << (2 * (round - 1)), kLongestHead);
    std::vector<ReadRequest> requests;
    requests.reserve(2 * runs.size());
    // By run: the head of its archive, and where its data were assumed to begin
    // when they were read; kUnknown if they were not.
    std::vector<std::span<std::byte>> heads(runs.size());
    std::vector<uint64_t> begins(runs.size(), kUnknown);
    uint64_t most = 0;
    for (size_t i = 0; i < runs.size(); i = EndOfChunk(runs, i)) {
      if (Known(runs[i]) != kUnknown) continue;
      most += std::min(head_bytes, runs[i].item.length);
    }
    std::vector<std::byte> memory(most);
    std::span<std::byte> rest = memory;
    for (size_t i = 0; i < runs.size(); ++i) {
      const ChunkRun& run = runs[i];
      HAULWAY_TRY(CheckItem(run, file->size()));
      uint64_t payload = Known(run);
      // Another thread found it just now: next round.
      if (IsInOtherOrder(payload)) continue;
      if (payload == kUnknown) {
        if (i > 0 && runs[i - 1].chunk == run.chunk) {
          heads[i] = heads[i - 1];
        } else {
          heads[i] = rest.first(std::min(head_bytes, run.item.length));
          rest = rest.subspan(heads[i].size());
          requests.push_back({run.item.offset, heads[i]});
        }
        payload = guess;
        if (round > 0 || guess + BytesOf(run) > run.item.length) continue;
      }
      if (run.chunk != kNoFile && payload + BytesOf(run) > run.item.length) {
        return Place(Outside(run, run.item.length), run);
      }
      begins[i] = payload;
      requests.push_back({run.item.offset + payload + run.offset, run.out});
    }
    HAULWAY_TRY(Read(*file, requests));
    for (size_t i = 0; i < runs.size(); ++i) {
      ChunkRun& run = runs[i];
      uint64_t payload = Known(run);
      if (!heads[i].empty() && payload == kUnknown) {
        HAULWAY_ASSIGN(payload, FindPayload(run, heads[i]));
      }
      run.is_done = begins[i] != kUnknown &&
                    (run.chunk == kNoFile || payload == begins[i]);
    }
    return Status();
  }

  uint64_t BytesOf(const ChunkRun& run) const {
    return dcp::BytesOf(source_.metadata_.tensors[run.tensor],
                        source_.metadata_.chunks[run.chunk]);
  }

  // Adds the run's place to a failure: `'w', chunk [3, 0]+[3, 6]`.
  Status Place(Status status, const ChunkRun& run) const {
    if (status.ok() || run.chunk == kNoFile) return status;
    return std::move(status)
        .In(PlaceOf(source_.metadata_.chunks[run.chunk]))
        .In(Quote(source_.metadata_.tensors[run.tensor].name));
  }

  Status Outside(const ChunkRun& run, uint64_t length) const {
    return Status(Code::kCorrupt,
                  fmt::format("chunk's data of {} bytes end past its archive "
                              "of {}",
                              BytesOf(run), length))
        .At(run.item.offset);
  }

  Status CheckItem(const ChunkRun& run, uint64_t file_bytes) const {
    if (RangeFits(run.item.offset, run.item.length, file_bytes)) {
      return Status();
    }
    return Place(Status(Code::kTruncated,
                        fmt::format("chunk of {} bytes ends past its file of "
                                    "{}",
                                    run.item.length, file_bytes))
                     .At(run.item.offset),
                 run);
  }

  Status Read(const ByteSource& file,
              const std::vector<ReadRequest>& requests) const {
    const SourceTraits traits = source_.files_.beside().Look({});
    return ReadJoined(
        file, requests,
        {.limits = {.largest_hole = LargestHole(traits, kGatheredHole),
                    .largest_read = kMostJoined},
         .direct_from = kSmallestStraight});
  }

  // Searches the head of an archive for the data of the run's chunk. Returns
  // kUnknown if the head ends before it.
  Result<uint64_t> FindPayload(const ChunkRun& run,
                               std::span<const std::byte> head) {
    auto found = ParseArchiveHead(head, run.item.length);
    if (!found.ok()) return Place(std::move(found).status(), run);
    if (!found->has_value()) {
      if (head.size() < std::min(kLongestHead, run.item.length)) {
        return kUnknown;
      }
      return Place(Status(Code::kUnsupported,
                          "the chunk's data do not begin in the first MiB of "
                          "its archive"),
                   run);
    }
    auto payload = NotePayload(run, **found, run.item.length);
    if (!payload.ok()) return Place(std::move(payload).status(), run);
    return payload;
  }

  // Notes where the data of the run's chunk are, in an archive of `length`
  // bytes. Fails if the archive has another tensor.
  Result<uint64_t> NotePayload(const ChunkRun& run, const ArchiveHead& archive,
                               uint64_t length) {
    const StoredTensor& tensor = source_.metadata_.tensors[run.tensor];
    const Chunk& chunk = source_.metadata_.chunks[run.chunk];
    if (!IsAsLast(archive.pickle, tensor.dtype, chunk.sizes)) {
      auto checked = CheckChunkPickle(
          archive.pickle, {tensor.dtype, chunk.sizes}, source_.limits_);
      if (!checked.ok()) return std::move(checked).status().In("data.pkl");
      last_pickle_.assign(archive.pickle.begin(), archive.pickle.end());
      last_ = {last_pickle_, tensor.dtype, chunk.sizes, *std::move(checked)};
    }
    uint64_t payload = 0;
    if (!CheckedAdd(archive.payload, last_.order.first, &payload) ||
        !RangeFits(payload, BytesOf(run), length)) {
      return Outside(run, length);
    }
    source_.NoteFound(run.chunk, payload, last_.order.strides);
    return Known(run);
  }

  // Returns whether the pickle equals the last one checked: chunks of the same
  // shape and dtype have identical pickles.
  bool IsAsLast(std::span<const std::byte> pickle, DType dtype,
                std::span<const int64_t> sizes) const {
    return !last_pickle_.empty() && last_.dtype == dtype &&
           std::ranges::equal(last_.sizes, sizes) &&
           std::ranges::equal(last_.pickle, pickle);
  }

  struct Checked {
    std::span<const std::byte> pickle;
    DType dtype = DType::kU8;
    std::span<const int64_t> sizes;
    ChunkOrder order;
  };

  const ChunkSource& source_;
  std::vector<ChunkRun> runs_;
  std::deque<Reordered> reordered_;  // Runs refer to its memory.
  Checked last_;
  std::vector<std::byte> last_pickle_;
};

ChunkSource::ChunkSource(const Metadata& metadata, const DataFiles& files,
                         const ParseLimits& limits, std::string name)
    : metadata_(metadata),
      files_(files),
      limits_(limits),
      name_(std::move(name)),
      payloads_(metadata.chunks.size()),
      usual_payload_(kUsualPayload) {
  has_transforms_ = HasTransforms(metadata);
  for (auto& payload : payloads_) {
    payload.store(metadata.has_archives ? kUnknown : 0,
                  std::memory_order_relaxed);
  }
  // Sort tensors by the file position of their first chunks.
  std::vector<uint32_t> order(metadata.tensors.size());
  std::iota(order.begin(), order.end(), 0U);
  const auto place = [&](uint32_t tensor) {
    const auto chunks = metadata.ChunksOf(metadata.tensors[tensor]);
    if (chunks.empty()) return std::pair(kNoFile, uint64_t{0});
    return std::pair(chunks[0].item.file, chunks[0].item.offset);
  };
  if (!std::ranges::is_sorted(order, {}, place)) {
    std::ranges::stable_sort(order, {}, place);
  }
  starts_.resize(order.size());
  regions_.reserve(order.size());
  for (const uint32_t tensor : order) {
    const uint64_t nbytes = metadata.tensors[tensor].nbytes;
    starts_[tensor] = size_;
    if (nbytes == 0) continue;
    regions_.push_back({size_, nbytes, tensor, {}});
    size_ = (size_ + nbytes + kAlignment - 1) / kAlignment * kAlignment;
  }
}

uint64_t ChunkSource::AddItem(const StoredItem& item) {
  const uint64_t start = size_;
  regions_.push_back({start, item.length, kNoFile, item});
  size_ = (size_ + item.length + kAlignment - 1) / kAlignment * kAlignment;
  return start;
}

Status ChunkSource::ReadAt(uint64_t offset, std::span<std::byte> out) const {
  const ReadRequest request{offset, out};
  return ReadMany({&request, 1});
}

Status ChunkSource::ReadMany(std::span<const ReadRequest> requests) const {
  ChunkReads reads(*this);
  for (const ReadRequest& request : requests) HAULWAY_TRY(reads.Add(request));
  return reads.Run();
}

SourceTraits ChunkSource::Look(std::span<const ByteRange>) const {
  SourceTraits traits = files_.beside().Look({}).Gathered();
  traits.in_order = has_transforms_;
  return traits;
}

std::optional<RemoteStats> ChunkSource::remote_stats() const {
  return files_.beside().remote_stats();
}

Result<std::shared_ptr<const ByteSource>> ChunkSource::OpenNeighbour(
    std::string_view name) const {
  return files_.beside().OpenNeighbour(name);
}

Result<ChunkPlace> ChunkSource::PlaceOf(uint32_t tensor, uint32_t row) const {
  const Chunk& chunk = metadata_.chunks[row];
  const uint64_t nbytes = BytesOf(metadata_.tensors[tensor], chunk);
  if (!chunk.item.transforms.empty()) {
    return Status(Code::kUnsupported,
                  "an extension transformed the chunk's data");
  }
  if (payloads_[row].load(std::memory_order_relaxed) == kUnknown) {
    // Reading the first byte of its data locates the data.
    uint64_t first = starts_[tensor];
    uint64_t stride = ItemBytes(metadata_.tensors[tensor].dtype);
    for (size_t d = chunk.sizes.size(); d-- > 0;) {
      first += stride * static_cast<uint64_t>(chunk.offsets[d]);
      stride *= static_cast<uint64_t>(metadata_.tensors[tensor].shape[d]);
    }
    std::byte byte;
    HAULWAY_TRY(ReadAt(first, {&byte, 1}));
  }
  const uint64_t payload =
      payloads_[row].load(std::memory_order_relaxed) & ~kReordered;
  return ChunkPlace{chunk.item.file, chunk.item.offset + payload, nbytes};
}

bool ChunkSource::IsReordered(uint32_t row) const {
  return IsInOtherOrder(payloads_[row].load(std::memory_order_relaxed));
}

std::vector<int64_t> ChunkSource::StridesOf(uint32_t row) const {
  const std::lock_guard lock(mutex_);
  return strides_.at(row);
}

void ChunkSource::NoteFound(uint32_t row, uint64_t payload,
                            const std::vector<int64_t>& strides) const {
  usual_payload_.store(payload, std::memory_order_relaxed);
  if (!strides.empty()) {
    const std::lock_guard lock(mutex_);
    strides_.try_emplace(row, strides);
    payload |= kReordered;
  }
  payloads_[row].store(payload, std::memory_order_release);
}

}  // namespace haulway::dcp
