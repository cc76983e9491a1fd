#include "compact_plan.h"

#include <algorithm>
#include <utility>

namespace haulway::python {

std::vector<int64_t> DenseStrides(std::span<const int64_t> shape) {
  std::vector<int64_t> strides(shape.size());
  int64_t stride = 1;
  for (size_t i = shape.size(); i-- > 0;) {
    strides[i] = stride;
    stride *= std::max<int64_t>(shape[i], 1);
  }
  return strides;
}

void CompactPlan::AddView(size_t storage, uint64_t begin, uint64_t item_bytes,
                          std::span<const int64_t> shape,
                          std::span<const int64_t> strides) {
  View view = {begin, begin + item_bytes, false, {}};
  uint64_t count = 1;
  bool repeats = false;
  for (size_t i = 0; i < shape.size(); ++i) {
    count *= static_cast<uint64_t>(shape[i]);
    if (shape[i] <= 1) continue;
    repeats = repeats || strides[i] == 0;
    view.end += static_cast<uint64_t>(shape[i] - 1) *
                static_cast<uint64_t>(strides[i]) * item_bytes;
  }
  if (count == 0) {
    // Of no bytes, wherever it points.
    view.begin = view.end = 0;
  }
  view.is_sparse =
      !repeats && count != 0 && count * item_bytes < view.end - view.begin;
  view.sizes.assign(shape.begin(), shape.end());
  view.sizes.insert(view.sizes.end(), strides.begin(), strides.end());
  At(storage).views.push_back(std::move(view));
}

void CompactPlan::Finish() {
  for (Storage& storage : storages_) {
    storage.first_cut = cuts_.size();
    if (storage.is_whole) continue;
    auto& views = storage.views;
    std::sort(views.begin(), views.end(), [](const View& a, const View& b) {
      return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
    });
    const View* first = nullptr;  // Of the cut being made.
    for (const View& view : views) {
      if (first != nullptr &&
          (view.begin < cuts_.back().end || view.begin == first->begin)) {
        StorageCut& cut = cuts_.back();
        cut.end = std::max(cut.end, view.end);
        cut.is_sparse = cut.is_sparse && view.begin == first->begin &&
                        view.sizes == first->sizes;
        continue;
      }
      first = &view;
      cuts_.push_back({view.begin, view.end, view.is_sparse});
    }
    storage.cut_count = cuts_.size() - storage.first_cut;
    views.clear();
  }
}

size_t CompactPlan::CutOf(size_t storage, uint64_t begin) const {
  if (storage >= storages_.size() || storages_[storage].is_whole ||
      storages_[storage].cut_count == 0) {
    return kWhole;
  }
  const auto first =
      cuts_.begin() + static_cast<ptrdiff_t>(storages_[storage].first_cut);
  const auto last =
      first + static_cast<ptrdiff_t>(storages_[storage].cut_count);
  const auto after = std::upper_bound(
      first, last, begin,
      [](uint64_t at, const StorageCut& cut) { return at < cut.begin; });
  if (after == first) return kWhole;
  return static_cast<size_t>(after - 1 - cuts_.begin());
}

}  // namespace haulway::python
