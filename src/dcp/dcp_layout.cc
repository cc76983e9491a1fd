// Design: for each tensor, the volumes must add up and no two chunks may
// overlap; together, this rules out holes. Overlaps are found by a sweep along
// the dimension in which the chunks differ most, so a grid of n chunks takes
// about n * sqrt(n) comparisons. A tensor that takes too many is refused.
//
// Alternatives not taken: comparing all pairs takes minutes for 100,000 chunks;
// cutting the tensor recursively fails for tilings without a straight cut.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/checked.h"
#include "base/name_index.h"
#include "base/text.h"
#include "dcp/dcp_metadata.h"

namespace haulway::dcp {

namespace {

constexpr uint64_t kMostComparisons = uint64_t{1} << 28;
// Maximum number of chunks for which a hole is located.
constexpr size_t kMostForHole = 1000;

bool Overlap(const Chunk& a, const Chunk& b) {
  for (size_t d = 0; d < a.sizes.size(); ++d) {
    if (a.offsets[d] >= b.offsets[d] + b.sizes[d] ||
        b.offsets[d] >= a.offsets[d] + a.sizes[d]) {
      return false;
    }
  }
  return true;
}

bool Holds(const Chunk& chunk, std::span<const int64_t> at) {
  for (size_t d = 0; d < at.size(); ++d) {
    if (at[d] < chunk.offsets[d] ||
        at[d] >= chunk.offsets[d] + chunk.sizes[d]) {
      return false;
    }
  }
  return true;
}

// Requires: the product does not overflow, e.g. because `sizes` lies within a
// checked shape.
uint64_t Elements(std::span<const int64_t> sizes) {
  uint64_t count = 1;
  for (const int64_t size : sizes) count *= static_cast<uint64_t>(size);
  return count;
}

class TileCheck {
 public:
  TileCheck(const StoredTensor& tensor, std::span<const Chunk> chunks,
            uint64_t* comparisons)
      : tensor_(tensor), comparisons_(*comparisons) {
    for (const Chunk& chunk : chunks) {
      if (!IsEmpty(chunk)) chunks_.push_back(&chunk);
    }
  }

  Status Run() {
    HAULWAY_TRY(CheckOverlaps());
    const bool is_empty =
        std::ranges::find(tensor_.shape, 0) != tensor_.shape.end();
    uint64_t held = 0;
    for (const Chunk* chunk : chunks_) held += Elements(chunk->sizes);
    const uint64_t wanted = is_empty ? 0 : Elements(tensor_.shape);
    if (held == wanted) return Status();
    return Status(Code::kCorrupt,
                  fmt::format("chunks leave a hole{}: expected {} elements, "
                              "found {}",
                              PlaceOfHole(), wanted, held));
  }

 private:
  Status CheckOverlaps() {
    if (chunks_.size() < 2) return Status();
    // A scalar has one element, and no dimension to sort by.
    if (tensor_.shape.empty()) return Overlapping(*chunks_[1], *chunks_[0]);
    const size_t d = SweepDimension();
    std::ranges::stable_sort(
        chunks_, {}, [&](const Chunk* chunk) { return chunk->offsets[d]; });
    std::vector<const Chunk*> active;
    for (const Chunk* chunk : chunks_) {
      comparisons_ += active.size() + 1;
      if (comparisons_ > kMostComparisons) {
        return Status(Code::kLimit,
                      fmt::format("chunks are too many to compare: more than "
                                  "{} comparisons",
                                  kMostComparisons));
      }
      std::erase_if(active, [&](const Chunk* other) {
        return other->offsets[d] + other->sizes[d] <= chunk->offsets[d];
      });
      for (const Chunk* other : active) {
        if (Overlap(*chunk, *other)) return Overlapping(*chunk, *other);
      }
      active.push_back(chunk);
    }
    return Status();
  }

  static Status Overlapping(const Chunk& chunk, const Chunk& other) {
    return Status(Code::kCorrupt, fmt::format("{} overlaps {}", PlaceOf(chunk),
                                              PlaceOf(other)));
  }

  // Returns the dimension with the most different chunk offsets. Requires: the
  // tensor has a dimension.
  size_t SweepDimension() const {
    size_t best = 0;
    size_t most = 0;
    for (size_t d = 0; d < tensor_.shape.size(); ++d) {
      std::vector<int64_t> begins;
      begins.reserve(chunks_.size());
      for (const Chunk* chunk : chunks_) begins.push_back(chunk->offsets[d]);
      std::ranges::sort(begins);
      const auto rest = std::ranges::unique(begins);
      const size_t distinct = begins.size() - rest.size();
      if (distinct > most) {
        most = distinct;
        best = d;
      }
    }
    return best;
  }

  // Returns " at [3, 0]": the first corner of a chunk, begin or end per
  // dimension, that no chunk contains.
  std::string PlaceOfHole() const {
    if (chunks_.size() > kMostForHole) return {};
    std::vector<std::vector<int64_t>> places = {
        std::vector<int64_t>(tensor_.shape.size())};
    for (const Chunk* chunk : chunks_) {
      for (size_t d = 0; d < tensor_.shape.size(); ++d) {
        std::vector<int64_t> place(chunk->offsets.begin(),
                                   chunk->offsets.end());
        place[d] += chunk->sizes[d];
        if (place[d] < tensor_.shape[d]) places.push_back(std::move(place));
      }
    }
    std::ranges::sort(places);
    for (const std::vector<int64_t>& place : places) {
      const auto holds = [&](const Chunk* chunk) {
        return Holds(*chunk, place);
      };
      if (std::ranges::none_of(chunks_, holds)) {
        return fmt::format(" at [{}]", fmt::join(place, ", "));
      }
    }
    return {};
  }

  const StoredTensor& tensor_;
  uint64_t& comparisons_;
  std::vector<const Chunk*> chunks_;
};

// An item and its owner.
struct Placed {
  StoredItem item;
  std::string_view name;
  const Chunk* chunk;  // Null for an object.
};

std::string Describe(const Placed& placed) {
  return placed.chunk == nullptr
             ? Quote(placed.name)
             : fmt::format("{} of {}", PlaceOf(*placed.chunk),
                           Quote(placed.name));
}

Status CheckBytes(const Metadata& metadata) {
  std::vector<Placed> items;
  items.reserve(metadata.chunks.size() + metadata.objects.size());
  for (const StoredTensor& tensor : metadata.tensors) {
    for (const Chunk& chunk : metadata.ChunksOf(tensor)) {
      if (chunk.item.file == kNoFile) continue;
      items.push_back({chunk.item, tensor.name, &chunk});
    }
  }
  for (const StoredObject& object : metadata.objects) {
    items.push_back({object.item, object.name, nullptr});
  }
  const auto place = [](const Placed& placed) {
    return std::pair(placed.item.file, placed.item.offset);
  };
  if (!std::ranges::is_sorted(items, {}, place)) {
    std::ranges::sort(items, {}, place);
  }
  for (size_t i = 1; i < items.size(); ++i) {
    const StoredItem& before = items[i - 1].item;
    if (before.file != items[i].item.file ||
        items[i].item.offset - before.offset >= before.length) {
      continue;
    }
    return Status(Code::kCorrupt,
                  fmt::format("{} shares bytes with {}", Describe(items[i]),
                              Describe(items[i - 1])))
        .At(items[i].item.offset)
        .In(Quote(metadata.files[before.file]));
  }
  return Status();
}

bool IsSame(const StoredTensor& a, const StoredTensor& b) {
  return a.dtype == b.dtype && std::ranges::equal(a.shape, b.shape);
}

// A RankJoin adds the entries of each rank to those of the ranks before it.
class RankJoin {
 public:
  explicit RankJoin(Metadata first) : all_(std::move(first)) {
    files_ = std::exchange(all_.files, {});
    for (uint32_t i = 0; i < all_.entries.size(); ++i) {
      names_.Add(all_.NameOf(all_.entries[i]), i, NameOf{all_});
    }
    chunks_.resize(all_.tensors.size());
    for (size_t i = 0; i < all_.tensors.size(); ++i) {
      const auto chunks = all_.ChunksOf(all_.tensors[i]);
      chunks_[i].assign(chunks.begin(), chunks.end());
    }
  }

  Status Add(const Metadata& rank) {
    const auto first_file = static_cast<uint32_t>(files_.size());
    files_.insert(files_.end(), rank.files.begin(), rank.files.end());
    all_.has_paths |= rank.has_paths;
    for (const StoredEntry& entry : rank.entries) {
      const std::string_view name = rank.NameOf(entry);
      const auto next = static_cast<uint32_t>(all_.entries.size());
      const uint32_t same = names_.Find(name, NameOf{all_});
      if (same != NameIndex::kNone) {
        HAULWAY_TRY(Extend(rank, entry, all_.entries[same], first_file));
        continue;
      }
      StoredEntry added = entry;
      if (entry.is_tensor) {
        added.row = static_cast<uint32_t>(all_.tensors.size());
        all_.tensors.push_back(rank.tensors[entry.row]);
        chunks_.emplace_back();
        AddChunks(rank, rank.tensors[entry.row], first_file, &chunks_.back());
      } else {
        added.row = static_cast<uint32_t>(all_.objects.size());
        all_.objects.push_back(rank.objects[entry.row]);
        all_.objects.back().item.file += first_file;
      }
      all_.entries.push_back(added);
      names_.Add(name, next, NameOf{all_});
    }
    return Status();
  }

  Metadata Take() {
    all_.files = std::move(files_);
    all_.chunks.clear();
    for (size_t i = 0; i < chunks_.size(); ++i) {
      StoredTensor& tensor = all_.tensors[i];
      tensor.first_chunk = static_cast<uint32_t>(all_.chunks.size());
      tensor.chunk_count = static_cast<uint32_t>(chunks_[i].size());
      all_.chunks.insert(all_.chunks.end(), chunks_[i].begin(),
                         chunks_[i].end());
    }
    return std::move(all_);
  }

 private:
  struct NameOf {
    const Metadata& all;
    std::string_view operator()(uint32_t i) const {
      return all.NameOf(all.entries[i]);
    }
  };

  Status Extend(const Metadata& rank, const StoredEntry& entry,
                const StoredEntry& same, uint32_t first_file) {
    if (entry.is_tensor != same.is_tensor ||
        (entry.is_tensor &&
         !IsSame(rank.tensors[entry.row], all_.tensors[same.row]))) {
      return Status(Code::kCorrupt,
                    "ranks saved the entry with another type or shape")
          .In(Quote(rank.NameOf(entry)));
    }
    if (entry.is_tensor) {
      AddChunks(rank, rank.tensors[entry.row], first_file, &chunks_[same.row]);
    }
    return Status();
  }

  // Adds chunks. A chunk that another rank saved too is a replica.
  static void AddChunks(const Metadata& rank, const StoredTensor& tensor,
                        uint32_t first_file, std::vector<Chunk>* chunks) {
    for (Chunk chunk : rank.ChunksOf(tensor)) {
      const bool is_replica =
          std::ranges::any_of(*chunks, [&](const Chunk& other) {
            return std::ranges::equal(other.offsets, chunk.offsets) &&
                   std::ranges::equal(other.sizes, chunk.sizes);
          });
      if (is_replica) continue;
      if (chunk.item.file != kNoFile) chunk.item.file += first_file;
      chunks->push_back(chunk);
    }
  }

  Metadata all_;
  std::vector<std::string_view> files_;
  NameIndex names_;
  std::vector<std::vector<Chunk>> chunks_;  // Parallel to all_.tensors.
};

}  // namespace

Result<Metadata> JoinRanks(std::vector<Metadata> ranks) {
  if (ranks.size() == 1) return std::move(ranks.front());
  RankJoin join(std::move(ranks.front()));
  for (size_t i = 1; i < ranks.size(); ++i) HAULWAY_TRY(join.Add(ranks[i]));
  return join.Take();
}

Status CheckLayout(const Metadata& metadata) {
  uint64_t comparisons = 0;
  for (const StoredTensor& tensor : metadata.tensors) {
    Status status =
        TileCheck(tensor, metadata.ChunksOf(tensor), &comparisons).Run();
    if (!status.ok()) return std::move(status).In(Quote(tensor.name));
  }
  for (const StoredTensor& tensor : metadata.tensors) {
    for (const Chunk& chunk : metadata.ChunksOf(tensor)) {
      uint64_t end = 0;
      if (CheckedAdd(chunk.item.offset, chunk.item.length, &end)) continue;
      return Status(Code::kCorrupt,
                    fmt::format("{} ends past every file", PlaceOf(chunk)))
          .In(Quote(tensor.name));
    }
  }
  return CheckBytes(metadata);
}

}  // namespace haulway::dcp
