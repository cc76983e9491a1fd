// Which elements of a tensor a process holds, given its place in a mesh.
//
// A codec: no I/O.

#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "haulway/sharding.h"
#include "haulway/status.h"

namespace haulway::ranks {

// The indices [begin, begin + length) of one dimension.
struct IndexRun {
  int64_t begin = 0;
  int64_t length = 0;

  bool operator==(const IndexRun&) const = default;
};
// The indices that a process holds of one dimension, in its order.
using Runs = std::vector<IndexRun>;

// The place of a process in a mesh: the mesh's sizes, and its coordinates.
struct MeshPlace {
  std::vector<int64_t> sizes;
  std::vector<int64_t> at;
};

// Returns the place of process `rank`. `ranks` is the tensor of the mesh, and
// `shape` its shape. Fails with kCorrupt if the axes do not divide the
// processes into meshes, and with kMismatch if the process is in none.
Result<MeshPlace> PlaceIn(const ProcessMesh& mesh,
                          std::span<const int64_t> ranks,
                          std::span<const int64_t> shape, int64_t rank);

// Returns the indices by dimension that the process in this place holds. Fails
// with kUnsupported for a term of a sum, with kCorrupt for placements that do
// not fit the mesh or the shape, and with kLimit for too many runs.
Result<std::vector<Runs>> RunsOf(std::span<const int64_t> shape,
                                 std::span<const Placement> placements,
                                 const MeshPlace& place);

int64_t LengthOf(const Runs& runs);

}  // namespace haulway::ranks
