#include "safetensors/safetensors_header.h"

namespace haulway::safetensors {

namespace {

constexpr auto kRanks = [] {
  std::array<int8_t, kDTypeCount> ranks = {};
  ranks.fill(-1);
  for (size_t i = 0; i < kSafetensorsDTypes.size(); ++i) {
    ranks[static_cast<size_t>(kSafetensorsDTypes[i])] = static_cast<int8_t>(i);
  }
  return ranks;
}();

}  // namespace

int RankOf(DType dtype) { return kRanks[static_cast<size_t>(dtype)]; }

std::optional<DType> DTypeNamed(std::string_view name) {
  for (const DType dtype : kSafetensorsDTypes) {
    if (Describe(dtype).safetensors_name == name) return dtype;
  }
  return std::nullopt;
}

}  // namespace haulway::safetensors
