// Design: each request becomes a grid of elements over its storage
// (tensor_slice.h), and so a list of ranges of the source. The ranges of all
// requests are sorted, merged if the hole between them costs less than a
// request, and cut into reads at page boundaries. A read that serves one target
// only goes directly to its place. Other reads go to a window, from which every
// target takes its elements. Pure: looks at the index, never at bytes.
//
// Planning request by request would read bytes twice that two slices need.
// Storages that are compressed, encrypted or verified are read whole, piece by
// piece, because their elements are not stored as such or because the digest
// needs all bytes.

#include "load/tensor_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/checked.h"
#include "base/page_bytes.h"
#include "base/text.h"
#include "decode/encoding_traits.h"
#include "decode/storage_decoder.h"
#include "io/join_ranges.h"

namespace haulway {

namespace {

// Largest number of runs, since each takes memory. Requests with more runs need
// a larger hole.
constexpr uint64_t kMostRuns = 64'000'000;

// A source range that a target needs.
struct Range {
  uint64_t begin;
  uint64_t end;
  uint32_t target;
  bool direct;
  uint64_t out;  // Byte offset in the output, if direct.
};

Status CheckRow(const char* what, uint32_t row, size_t count) {
  if (row < count) return Status();
  return Status(Code::kInvalidArgument,
                fmt::format("no {} {}: expected below {}", what, row, count));
}

// Returns the storage that a request refers to, and the type of its elements.
Result<StorageElements> WantedOf(const CheckpointIndex& index,
                                 const TensorRequest& request) {
  if (request.storage.has_value()) {
    HAULWAY_TRY(
        CheckRow("storage", request.storage->storage, index.storages.size()));
    return *request.storage;
  }
  HAULWAY_TRY(CheckRow("tensor", request.tensor, index.tensors.size()));
  const TensorInfo& tensor = index.tensors[request.tensor];
  return StorageElements{tensor.storage, tensor.dtype};
}

class Planner {
 public:
  Planner(const Checkpoint& checkpoint, std::span<const TensorRequest> requests,
          const TensorPlanLimits& limits)
      : checkpoint_(checkpoint),
        index_(checkpoint.index()),
        requests_(requests),
        limits_(limits) {}

  Result<TensorPlan> Run() {
    HAULWAY_TRY(AddTargets());
    GroupWhole();
    HAULWAY_TRY(AddRanges());
    SortRanges();
    CutReads();
    Assign();
    for (const TensorRead& read : plan_.reads) plan_.read_bytes += read.bytes;
    return std::move(plan_);
  }

 private:
  // Marks storages that are byte-swapped in units that differ from the unit of
  // a requested tensor. Such elements cannot be decoded separately.
  Status FindOddUnits() {
    has_odd_units_.resize(index_.storages.size());
    for (const TensorRequest& request : requests_) {
      HAULWAY_ASSIGN(const auto wanted, WantedOf(index_, request));
      if (wanted.storage == kNoStorage) continue;
      const uint8_t unit = index_.storages[wanted.storage].swap_bytes;
      if (unit > 1 && unit != Describe(wanted.dtype).swap_bytes) {
        has_odd_units_[wanted.storage] = true;
      }
    }
    return Status();
  }

  Status CheckCast(const TensorRequest& request) const {
    if (request.storage.has_value()) {
      return checkpoint_.CheckCastOfStorage(request.storage->storage);
    }
    return checkpoint_.CheckCast(request.tensor);
  }

  Status AddTargets() {
    HAULWAY_TRY(FindOddUnits());
    std::vector<bool> seen(index_.storages.size());
    plan_.targets.reserve(requests_.size());
    for (size_t i = 0; i < requests_.size(); ++i) {
      const TensorRequest& request = requests_[i];
      Result<Target> made = MakeTarget(index_, request);
      if (!made.ok()) {
        return std::move(made).status().In(PlaceOf(index_, request));
      }
      Target target = *std::move(made);
      if (target.from != target.to) HAULWAY_TRY(CheckCast(request));
      target.request = static_cast<uint32_t>(i);
      plan_.tensor_bytes += target.grid.count * target.grid.item_bytes;
      const StorageInfo& storage = index_.storages[target.storage];
      if (!seen[target.storage]) {
        seen[target.storage] = true;
        HAULWAY_TRY(AddStorage(target.storage, storage));
      }
      if (IsWhole(target.storage)) {
        target.base = 0;
        target.swap_bytes = 1;
      } else if (!TraitsOf(storage).is_stored) {
        plan_.zeros.push_back(static_cast<uint32_t>(plan_.targets.size()));
      }
      plan_.targets.push_back(std::move(target));
    }
    return Status();
  }

  // Adds what a storage needs once, regardless of how many requests use it.
  Status AddStorage(uint32_t row, const StorageInfo& storage) {
    const uint64_t frame = storage.frame_end - storage.frame_offset;
    if (!RangeFits(storage.frame_offset, frame, checkpoint_.source().size())) {
      return Status(Code::kTruncated, "storage ends past the source")
          .At(storage.frame_offset)
          .In(PlaceOf(storage));
    }
    if (IsWhole(row)) {
      plan_.whole.push_back(row);
      plan_.whole_bytes += frame;
      return Status();
    }
    const uint64_t before = storage.offset - storage.frame_offset;
    const uint64_t payload_end = storage.offset + storage.stored_bytes;
    const uint64_t after = storage.frame_end - payload_end;
    if (before + after == 0) return Status();
    plan_.frames.push_back({row, plan_.frame_bytes, before, after});
    AddFrame(storage.frame_offset, before);
    AddFrame(payload_end, after);
    return Status();
  }

  void AddFrame(uint64_t offset, uint64_t bytes) {
    if (bytes == 0) return;
    Target target;
    target.grid = DenseGrid(bytes, 1);
    target.base = offset;
    target.out = plan_.frame_bytes;
    plan_.frame_bytes += bytes;
    plan_.targets.push_back(std::move(target));
  }

  // Returns whether the storage is read whole: its elements are not stored as
  // such, or all its bytes are verified.
  bool IsWhole(uint32_t row) const {
    const StorageInfo& storage = index_.storages[row];
    if (has_odd_units_[row]) return true;
    const EncodingTraits& traits = TraitsOf(storage);
    if (traits.is_stored && !traits.is_raw) return true;
    if (limits_.verify &&
        (storage.crc32.has_value() || checkpoint_.reader().has_digests())) {
      return true;
    }
    return false;
  }

  void GroupWhole() {
    std::vector<uint32_t> position(index_.storages.size(), kNoStorage);
    for (uint32_t w = 0; w < plan_.whole.size(); ++w) {
      position[plan_.whole[w]] = w;
    }
    std::vector<uint32_t> count(plan_.whole.size() + 1);
    const auto whole = [&](const Target& target) {
      return target.request == Target::kFrame ? kNoStorage
                                              : position[target.storage];
    };
    for (const Target& target : plan_.targets) {
      if (whole(target) != kNoStorage) ++count[whole(target) + 1];
    }
    for (size_t w = 1; w < count.size(); ++w) count[w] += count[w - 1];
    plan_.whole_begin = count;
    plan_.whole_targets.resize(count.back());
    for (uint32_t t = 0; t < plan_.targets.size(); ++t) {
      const uint32_t w = whole(plan_.targets[t]);
      if (w != kNoStorage) plan_.whole_targets[count[w]++] = t;
    }
    is_read_.assign(plan_.targets.size(), true);
    for (const uint32_t t : plan_.whole_targets) is_read_[t] = false;
    for (const uint32_t t : plan_.zeros) is_read_[t] = false;
  }

  Status AddRanges() {
    uint64_t runs = 0;
    for (uint32_t t = 0; t < plan_.targets.size(); ++t) {
      const Target& target = plan_.targets[t];
      if (!is_read_[t] || target.grid.count == 0) continue;
      const RunShape shape = ShapeOfRuns(target.grid, limits_.largest_hole);
      if (!CheckedAdd(runs, shape.count, &runs) || runs > kMostRuns) {
        return Status(Code::kLimit,
                      fmt::format("slices need more than {} reads: expected "
                                  "a larger hole between two",
                                  kMostRuns));
      }
      const uint64_t item = target.grid.item_bytes;
      const bool may_be_direct = target.request != Target::kFrame &&
                                 target.from == target.to &&
                                 limits_.smallest_direct != 0;
      ForEachRun(target.grid, limits_.largest_hole, [&](const ElementRun& run) {
        const uint64_t bytes = (run.end - run.begin) * item;
        const uint64_t begin = target.base + run.begin * item;
        ranges_.push_back({begin, begin + bytes, t,
                           may_be_direct && run.out.has_value() &&
                               bytes >= limits_.smallest_direct,
                           run.out.value_or(0) * item});
      });
    }
    return Status();
  }

  void SortRanges() {
    if (!std::ranges::is_sorted(ranges_, {}, &Range::begin)) {
      std::ranges::stable_sort(ranges_, {}, &Range::begin);
    }
    // A range that two targets need is read once, so it cannot be read directly
    // into the memory of one.
    size_t furthest = 0;
    for (size_t r = 1; r < ranges_.size(); ++r) {
      if (ranges_[r].begin < ranges_[furthest].end) {
        ranges_[r].direct = ranges_[furthest].direct = false;
      }
      if (ranges_[r].end > ranges_[furthest].end) furthest = r;
    }
  }

  // Returns the end of a read that begins at `begin`: a page boundary, so that
  // direct reads join without overlap.
  uint64_t NextCut(uint64_t begin, uint64_t end) const {
    if (end - begin <= limits_.largest_read) return end;
    const uint64_t cut = begin + limits_.largest_read;
    const uint64_t page = cut - cut % kPageBytes;
    return page > begin ? page : cut;
  }

  void CutReads() {
    for (size_t r = 0; r < ranges_.size();) {
      const Range& range = ranges_[r];
      ByteRange read = {range.begin, range.end - range.begin};
      ++r;
      if (range.direct) {
        for (uint64_t at = range.begin; at < range.end;) {
          const uint64_t cut = NextCut(at, range.end);
          plan_.reads.push_back({at, cut - at, cut, true, range.target,
                                 range.out + (at - range.begin)});
          at = cut;
        }
        continue;
      }
      while (r < ranges_.size() && !ranges_[r].direct &&
             JoinRanges(&read,
                        {ranges_[r].begin, ranges_[r].end - ranges_[r].begin},
                        {.largest_hole = limits_.largest_hole})) {
        ++r;
      }
      const uint64_t end = read.offset + read.length;
      for (uint64_t at = range.begin; at < end;) {
        const uint64_t cut = NextCut(at, end);
        plan_.reads.push_back({at, cut - at, cut});
        at = cut;
      }
    }
  }

  // Lists, for each read that is not direct, the targets that take elements
  // from it.
  void Assign() {
    std::vector<std::pair<uint32_t, uint32_t>> pairs;  // (read, target).
    std::vector<uint32_t> last(plan_.targets.size(), UINT32_MAX);
    size_t first = 0;  // The first read that may contain the range.
    for (const Range& range : ranges_) {
      if (range.direct) continue;
      const auto ends_before = [&](size_t r) {
        return plan_.reads[r].end <= range.begin;
      };
      while (ends_before(first)) ++first;
      for (size_t r = first;
           r < plan_.reads.size() && plan_.reads[r].offset < range.end; ++r) {
        TensorRead& read = plan_.reads[r];
        if (read.direct) continue;
        if (range.end > read.end) Complete(range, &read);
        if (last[range.target] == r) continue;
        last[range.target] = static_cast<uint32_t>(r);
        pairs.emplace_back(static_cast<uint32_t>(r), range.target);
        ++read.uses;
      }
    }
    uint32_t uses = 0;
    for (TensorRead& read : plan_.reads) {
      read.first_use = uses;
      uses += std::exchange(read.uses, 0);
    }
    plan_.uses.resize(uses);
    for (const auto& [r, target] : pairs) {
      TensorRead& read = plan_.reads[r];
      plan_.uses[read.first_use + read.uses++] = target;
    }
  }

  // Extends a read to the end of an element that the cut divides.
  void Complete(const Range& range, TensorRead* read) const {
    const Target& target = plan_.targets[range.target];
    const uint64_t item = target.grid.item_bytes;
    const uint64_t rest = (read->end - target.base) % item;
    if (rest == 0) return;
    const uint64_t bytes = read->end - read->offset + (item - rest);
    read->bytes = std::max(read->bytes, bytes);
  }

  const Checkpoint& checkpoint_;
  const CheckpointIndex& index_;
  const std::span<const TensorRequest> requests_;
  const TensorPlanLimits& limits_;
  std::vector<Range> ranges_;
  std::vector<bool> is_read_;        // By target.
  std::vector<bool> has_odd_units_;  // By storage.
  TensorPlan plan_;
};

}  // namespace

Result<Target> MakeTarget(const CheckpointIndex& index,
                          const TensorRequest& request) {
  HAULWAY_ASSIGN(const StorageElements wanted, WantedOf(index, request));
  if (wanted.storage == kNoStorage) {
    return Status(Code::kInvalidArgument, "a meta tensor has no data to read");
  }
  const StorageInfo& storage = index.storages[wanted.storage];
  Target target;
  target.storage = wanted.storage;
  target.from = wanted.dtype;
  target.to = request.dtype.value_or(wanted.dtype);
  if (!CanCast(target.from, target.to)) {
    return Status(Code::kUnsupported,
                  fmt::format("casting {} to {} is not supported",
                              Name(target.from), Name(target.to)));
  }
  if (request.storage.has_value()) {
    const uint64_t item = ItemBytes(wanted.dtype);
    target.grid = DenseGrid(storage.nbytes / item, item);
  } else {
    HAULWAY_ASSIGN(target.grid,
                   MakeGrid(index.tensors[request.tensor], request.slice));
  }
  if (!CheckedMultiply(target.grid.count, ItemBytes(target.to),
                       &target.out_bytes)) {
    return Status(Code::kInvalidArgument, "slice: its size overflows");
  }
  // MakeGrid() has checked that this does not overflow.
  if (target.grid.count != 0 &&
      (target.grid.first + target.grid.Extent()) * target.grid.item_bytes >
          storage.nbytes) {
    return Status(Code::kCorrupt,
                  fmt::format("tensor ends past its storage of {} bytes",
                              storage.nbytes));
  }
  target.base = storage.offset;
  target.swap_bytes = storage.swap_bytes;
  return target;
}

std::string PlaceOf(const CheckpointIndex& index,
                    const TensorRequest& request) {
  if (request.storage.has_value()) {
    return PlaceOf(index.storages[request.storage->storage]);
  }
  const auto named =
      std::ranges::find(index.entries, request.tensor, &Entry::tensor);
  return named == index.entries.end() ? fmt::format("tensor {}", request.tensor)
                                      : Quote(named->name);
}

Result<TensorPlan> PlanTensorReads(const Checkpoint& checkpoint,
                                   std::span<const TensorRequest> requests,
                                   const TensorPlanLimits& limits) {
  return Planner(checkpoint, requests, limits).Run();
}

}  // namespace haulway
