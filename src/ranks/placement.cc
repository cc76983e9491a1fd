// Design: torch cuts a dimension once for each dimension of the mesh that
// shards it, each time what the cut before left, into pieces of equal length
// except the last ones (torch.chunk). So the indices of a process are runs, and
// a cut of runs gives runs.
//
// Since torch 2.10 a mesh states axes of (sizes : strides) over the list of all
// processes. The meshes are the translates of what the axes choose, which tile
// the list; each process is in one of them.

#include "ranks/placement.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <utility>

#include "base/checked.h"

namespace haulway::ranks {

namespace {

constexpr size_t kMostRuns = size_t{1} << 20;
constexpr size_t kMostSteps = size_t{1} << 26;

int64_t CeilDivide(int64_t a, int64_t b) {
  return a / b + (a % b != 0 ? 1 : 0);
}

// Appends the part [from, to) of the concatenated runs.
void AppendPart(const Runs& runs, int64_t from, int64_t to, Runs* part) {
  int64_t at = 0;
  for (const IndexRun& run : runs) {
    const int64_t begin = std::max(from - at, int64_t{0});
    const int64_t end = std::min(to - at, run.length);
    at += run.length;
    if (begin >= end) continue;
    const IndexRun next{run.begin + begin, end - begin};
    if (!part->empty() &&
        part->back().begin + part->back().length == next.begin) {
      part->back().length += next.length;
    } else {
      part->push_back(next);
    }
  }
}

// Appends piece `index` of `count` of the part [from, to) of the runs.
void AppendChunk(const Runs& runs, int64_t from, int64_t to, int64_t count,
                 int64_t index, Runs* part) {
  const int64_t length = to - from;
  const int64_t piece = CeilDivide(length, count);
  if (piece == 0 || index > length / piece) return;
  const int64_t begin = from + index * piece;
  AppendPart(runs, begin, begin + std::min(piece, to - begin), part);
}

Status TooManyRuns(const Placement& placement) {
  return Status(Code::kLimit,
                fmt::format("{} cuts a dimension into more than {} runs",
                            ToString(placement), kMostRuns));
}

Result<Runs> Cut(const Runs& runs, const Placement& placement, int64_t count,
                 int64_t index) {
  const int64_t length = LengthOf(runs);
  const int64_t factor = placement.kind == PlacementKind::kStridedShard
                             ? placement.split_factor
                             : 1;
  Runs cut;
  const int64_t piece = CeilDivide(length, factor);
  if (piece != 0 && static_cast<uint64_t>(CeilDivide(length, piece)) >
                        kMostSteps / (runs.size() + 1)) {
    return TooManyRuns(placement);
  }
  for (int64_t from = 0; from < length;) {
    const int64_t to = from + std::min(piece, length - from);
    AppendChunk(runs, from, to, count, index, &cut);
    if (cut.size() > kMostRuns) return TooManyRuns(placement);
    from = to;
  }
  return cut;
}

// Returns the sizes of the mesh's dimensions, and where its places lie in the
// list of processes: row-major, from 0 on.
struct Layout {
  std::vector<int64_t> sizes;
  std::vector<uint64_t> offsets;
};

Status NoMesh() {
  return Status(Code::kCorrupt,
                "the axes of the mesh do not divide its processes");
}

Result<Layout> LayoutOf(const ProcessMesh& mesh, uint64_t count) {
  Layout layout;
  layout.offsets = {0};
  for (const MeshAxis& axis : mesh.axes) {
    int64_t axis_size = 1;
    for (size_t i = 0; i < axis.sizes.size(); ++i) {
      const auto size = static_cast<uint64_t>(axis.sizes[i]);
      const auto stride = static_cast<uint64_t>(axis.strides[i]);
      if (size == 0 || size > count || layout.offsets.size() > count / size) {
        return NoMesh();
      }
      if (size == 1) continue;
      axis_size *= axis.sizes[i];
      std::vector<uint64_t> next;
      next.reserve(layout.offsets.size() * size);
      for (const uint64_t offset : layout.offsets) {
        for (uint64_t c = 0; c < size; ++c) {
          uint64_t at = 0;
          if (!CheckedMultiply(c, stride, &at) ||
              !CheckedAdd(at, offset, &at) || at >= count) {
            return NoMesh();
          }
          next.push_back(at);
        }
      }
      layout.offsets = std::move(next);
    }
    layout.sizes.push_back(axis_size);
  }
  return layout;
}

// Returns which of the offsets leads to position `wanted` from the start of its
// translate. Fails unless the translates tile the positions.
Result<size_t> FindInTranslates(const Layout& layout, uint64_t count,
                                uint64_t wanted) {
  std::vector<bool> is_taken(count);
  size_t found = 0;
  for (uint64_t start = 0; start < count; ++start) {
    if (is_taken[start]) continue;
    for (size_t i = 0; i < layout.offsets.size(); ++i) {
      const uint64_t at = start + layout.offsets[i];
      if (at >= count || is_taken[at]) return NoMesh();
      is_taken[at] = true;
      if (at == wanted) found = i;
    }
  }
  return found;
}

std::vector<int64_t> CoordinatesOf(std::span<const int64_t> sizes,
                                   uint64_t number) {
  std::vector<int64_t> at(sizes.size());
  for (size_t d = sizes.size(); d-- > 0;) {
    const auto size = static_cast<uint64_t>(sizes[d]);
    at[d] = static_cast<int64_t>(number % size);
    number /= size;
  }
  return at;
}

}  // namespace

int64_t LengthOf(const Runs& runs) {
  int64_t length = 0;
  for (const IndexRun& run : runs) length += run.length;
  return length;
}

Result<MeshPlace> PlaceIn(const ProcessMesh& mesh,
                          std::span<const int64_t> ranks,
                          std::span<const int64_t> shape, int64_t rank) {
  const auto found = std::ranges::find(ranks, rank);
  if (found == ranks.end()) {
    return Status(Code::kMismatch,
                  fmt::format("process {} is not in the mesh", rank));
  }
  if (std::ranges::count(ranks, rank) != 1) return NoMesh();
  const auto position = static_cast<uint64_t>(found - ranks.begin());
  if (!mesh.has_layout) {
    return MeshPlace{{shape.begin(), shape.end()},
                     CoordinatesOf(shape, position)};
  }
  HAULWAY_ASSIGN(const Layout layout, LayoutOf(mesh, ranks.size()));
  HAULWAY_ASSIGN(const size_t number,
                 FindInTranslates(layout, ranks.size(), position));
  return MeshPlace{layout.sizes, CoordinatesOf(layout.sizes, number)};
}

Result<std::vector<Runs>> RunsOf(std::span<const int64_t> shape,
                                 std::span<const Placement> placements,
                                 const MeshPlace& place) {
  if (placements.size() != place.sizes.size()) {
    return Status(Code::kCorrupt,
                  fmt::format("{} placements: expected {}, one for each "
                              "dimension of the mesh",
                              placements.size(), place.sizes.size()));
  }
  std::vector<Runs> runs(shape.size());
  for (size_t d = 0; d < shape.size(); ++d) {
    if (shape[d] != 0) runs[d] = {{0, shape[d]}};
  }
  for (size_t m = 0; m < placements.size(); ++m) {
    const Placement& placement = placements[m];
    if (placement.kind == PlacementKind::kPartial) {
      return Status(Code::kUnsupported,
                    fmt::format("placement {} is a term of a sum, which is not "
                                "a value: save the tensor after a reduction",
                                ToString(placement)));
    }
    if (placement.kind == PlacementKind::kReplicate) continue;
    if (static_cast<uint64_t>(placement.dim) >= shape.size()) {
      return Status(Code::kCorrupt,
                    fmt::format("placement {} is of a dimension that the "
                                "tensor of {} lacks",
                                ToString(placement), shape.size()));
    }
    Runs& cut = runs[static_cast<size_t>(placement.dim)];
    HAULWAY_ASSIGN(cut, Cut(cut, placement, place.sizes[m], place.at[m]));
  }
  return runs;
}

}  // namespace haulway::ranks
