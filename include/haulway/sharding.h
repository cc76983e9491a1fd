// What one process holds of a tensor that several processes hold together, as
// the files say that the processes of a training write: DTensor and
// ShardedTensor of torch.distributed.
//
// Lifetime: views live as long as the reader that made the index.

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "haulway/dtype.h"
#include "haulway/status.h"

namespace haulway {

enum class PlacementKind : uint8_t {
  kReplicate,
  kShard,
  kStridedShard,
  kPartial,  // A term of a sum.
};

// What one dimension of a mesh does to a tensor.
struct Placement {
  PlacementKind kind = PlacementKind::kReplicate;
  int64_t dim = 0;               // A dimension of the tensor.
  int64_t split_factor = 1;      // For kStridedShard.
  std::string_view reduce_op{};  // For kPartial.

  bool operator==(const Placement&) const = default;
};

// Returns what torch's str() does: "S(0)", "_S(0, 2)", "R", "P(sum)".
HAULWAY_EXPORT std::string ToString(const Placement& placement);

// One dimension of a mesh: sizes, and steps in the list of processes. Mostly
// one of each.
struct MeshAxis {
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;

  bool operator==(const MeshAxis&) const = default;
};

// An array of processes. If `has_layout`, the axes choose among `ranks`, and
// all translates of what they choose are meshes too; otherwise `ranks` has the
// array's shape.
struct ProcessMesh {
  bool has_layout = false;
  std::vector<MeshAxis> axes;
  std::vector<std::string_view> names;  // By dimension; may be empty.
  uint32_t ranks = 0;           // Row of tensors: the numbers of the processes.
  std::optional<int64_t> rank;  // The process that wrote the file.
};

// A rectangle of a tensor. Offsets and sizes are in elements, by dimension.
struct ShardBox {
  std::vector<int64_t> offsets;
  std::vector<int64_t> sizes;

  bool operator==(const ShardBox&) const = default;
};

// A rectangle that the process holds, and the row of tensors with its elements.
struct LocalShard {
  ShardBox box;
  uint32_t tensor = 0;
};

struct Sharding {
  static constexpr uint32_t kNoMesh = 0xFFFFFFFF;

  DType dtype = DType::kU8;
  std::vector<int64_t> shape;  // The whole tensor's.
  // For a DTensor, one for each dimension of the mesh.
  std::vector<Placement> placements;
  uint32_t mesh = kNoMesh;  // Row of meshes; kNoMesh for a ShardedTensor.
  // For a ShardedTensor: the rectangles of this process, and of all processes.
  std::vector<LocalShard> local;
  std::vector<ShardBox> all;
};

}  // namespace haulway
