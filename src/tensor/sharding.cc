#include "haulway/sharding.h"

#include <fmt/format.h>

namespace haulway {

std::string ToString(const Placement& placement) {
  switch (placement.kind) {
    case PlacementKind::kReplicate:
      return "R";
    case PlacementKind::kShard:
      return fmt::format("S({})", placement.dim);
    case PlacementKind::kStridedShard:
      return fmt::format("_S({}, {})", placement.dim, placement.split_factor);
    case PlacementKind::kPartial:
      return fmt::format("P({})", placement.reduce_op);
  }
  return {};
}

}  // namespace haulway
