#include "pickling/compact_plan.h"

#include <algorithm>
#include <numeric>
#include <tuple>
#include <utility>

namespace haulway::python {

namespace {

// Limit on the runs of elements that are examined to separate the views of one
// storage. Beyond the limit the views stay together.
constexpr size_t kMostRuns = 4'000'000;

struct Run {
  uint64_t begin;
  uint64_t end;
  size_t view;
};

}  // namespace

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
  View view = {begin, begin + item_bytes, false, 0, {}};
  uint64_t count = 1;
  std::vector<std::pair<uint64_t, uint64_t>> steps;  // (stride in bytes, steps)
  for (size_t i = 0; i < shape.size(); ++i) {
    count *= static_cast<uint64_t>(shape[i]);
    if (shape[i] <= 1) continue;
    steps.emplace_back(static_cast<uint64_t>(strides[i]) * item_bytes,
                       static_cast<uint64_t>(shape[i] - 1));
  }
  std::sort(steps.begin(), steps.end());
  bool repeats = false;  // Some byte may belong to two elements.
  for (const auto& [bytes, more] : steps) {
    repeats = repeats || bytes < view.end - view.begin;
    view.end += more * bytes;
  }
  if (count == 0) {
    // An empty view has no bytes, wherever it points.
    view.begin = view.end = 0;
  }
  view.is_sparse =
      !repeats && count != 0 && count * item_bytes < view.end - view.begin;
  view.bytes = repeats ? 0 : count * item_bytes;
  view.sizes.push_back(static_cast<int64_t>(item_bytes));
  view.sizes.insert(view.sizes.end(), shape.begin(), shape.end());
  view.sizes.insert(view.sizes.end(), strides.begin(), strides.end());
  At(storage).views.push_back(std::move(view));
}

void CompactPlan::Finish() {
  for (Storage& storage : storages_) {
    if (storage.is_whole) continue;
    auto& views = storage.views;
    std::sort(views.begin(), views.end(), [](const View& a, const View& b) {
      return std::tie(a.begin, a.end, a.sizes) <
             std::tie(b.begin, b.end, b.sizes);
    });
    for (size_t first = 0; first < views.size();) {
      uint64_t end = views[first].end;
      size_t last = first + 1;
      while (last < views.size() && (views[last].begin < end ||
                                     views[last].begin == views[first].begin)) {
        end = std::max(end, views[last++].end);
      }
      const std::span<const View> group(&views[first], last - first);
      if (!CutApart(group, &storage)) AddCut(group, &storage);
      first = last;
    }
    // If an empty view and a view with elements begin at the same byte, CutOf()
    // finds the latter.
    std::stable_sort(storage.cuts.begin(), storage.cuts.end(),
                     [&](const auto& a, const auto& b) {
                       return std::pair(a.first, cuts_[b.second].end) <
                              std::pair(b.first, cuts_[a.second].end);
                     });
    views.clear();
  }
}

// Adds one cut for the span of some views. If all views are equal and have
// holes, the cut holds their elements only.
void CompactPlan::AddCut(std::span<const View> views, Storage* storage) {
  StorageCut cut = {views[0].begin, views[0].end, views[0].is_sparse};
  for (const View& view : views) {
    cut.begin = std::min(cut.begin, view.begin);
    cut.end = std::max(cut.end, view.end);
    cut.is_sparse = cut.is_sparse && view.begin == views[0].begin &&
                    view.sizes == views[0].sizes;
    storage->cuts.emplace_back(view.begin, cuts_.size());
  }
  cuts_.push_back(cut);
}

// Separates the views into groups that share no byte, one cut each, if that
// takes fewer bytes than the span of all views. Returns whether it did.
// Requires: the views are sorted as in Finish().
bool CompactPlan::CutApart(std::span<const View> views, Storage* storage) {
  std::vector<size_t> firsts;  // One view of each set of equal views.
  uint64_t end = 0, bytes = 0;
  for (size_t i = 0; i < views.size(); ++i) {
    end = std::max(end, views[i].end);
    if (i != 0 && views[i].begin == views[i - 1].begin &&
        views[i].sizes == views[i - 1].sizes) {
      continue;
    }
    firsts.push_back(i);
    bytes += views[i].bytes;
  }
  const uint64_t span = end - views[0].begin;
  if (firsts.size() == 1 || bytes >= span) return false;

  std::vector<Run> runs;
  for (size_t number = 0; number < firsts.size(); ++number) {
    const View& view = views[firsts[number]];
    if (view.begin == view.end) continue;
    const size_t rank = (view.sizes.size() - 1) / 2;
    const auto size_at = [&](size_t i) { return view.sizes[1 + i]; };
    const auto stride_at = [&](size_t i) {
      return static_cast<uint64_t>(view.sizes[1 + rank + i] * view.sizes[0]);
    };
    std::vector<size_t> order(rank);  // Dimensions, smallest stride first.
    std::iota(order.begin(), order.end(), size_t{0});
    std::sort(order.begin(), order.end(),
              [&](size_t a, size_t b) { return stride_at(a) < stride_at(b); });
    const size_t own = runs.size();
    runs.push_back({view.begin,
                    view.begin + static_cast<uint64_t>(view.sizes[0]), number});
    for (const size_t i : order) {
      const auto count = static_cast<uint64_t>(size_at(i));
      if (count == 1 || stride_at(i) == 0) continue;
      if (runs.size() == own + 1 &&
          stride_at(i) <= runs[own].end - runs[own].begin) {
        runs[own].end += (count - 1) * stride_at(i);
        continue;
      }
      const size_t so_far = runs.size() - own;
      if (count > kMostRuns / so_far || own + so_far * count > kMostRuns) {
        return false;
      }
      for (uint64_t step = 1; step < count; ++step) {
        for (size_t j = 0; j < so_far; ++j) {
          Run run = runs[own + j];
          run.begin += step * stride_at(i);
          run.end += step * stride_at(i);
          runs.push_back(run);
        }
      }
    }
  }
  std::sort(runs.begin(), runs.end(),
            [](const Run& a, const Run& b) { return a.begin < b.begin; });

  std::vector<size_t> parents(firsts.size());  // Union-find of views sharing
                                               // bytes.
  std::iota(parents.begin(), parents.end(), size_t{0});
  const auto root = [&](size_t i) {
    while (parents[i] != i) i = parents[i] = parents[parents[i]];
    return i;
  };
  uint64_t covered = 0;
  size_t last = 0;  // The view that covers `covered`.
  for (const Run& run : runs) {
    if (run.begin < covered) parents[root(run.view)] = root(last);
    if (run.end > covered) {
      covered = run.end;
      last = run.view;
    }
  }

  std::vector<std::vector<View>> parts(firsts.size());
  for (size_t number = 0; number < firsts.size(); ++number) {
    auto& part = parts[root(number)];
    const size_t to =
        number + 1 < firsts.size() ? firsts[number + 1] : views.size();
    part.insert(part.end(), &views[firsts[number]], views.data() + to);
  }
  std::erase_if(parts, [](const auto& part) { return part.empty(); });
  uint64_t apart = 0;
  for (const auto& part : parts) {
    const bool same = part.front().sizes == part.back().sizes &&
                      part.front().begin == part.back().begin;
    uint64_t part_end = 0;
    for (const View& view : part) part_end = std::max(part_end, view.end);
    apart += same && part.front().is_sparse ? part.front().bytes
                                            : part_end - part.front().begin;
  }
  if (apart >= span) return false;
  for (const auto& part : parts) AddCut(part, storage);
  return true;
}

size_t CompactPlan::CutOf(size_t storage, uint64_t begin) const {
  if (storage >= storages_.size() || storages_[storage].is_whole) {
    return kWhole;
  }
  const auto& cuts = storages_[storage].cuts;
  const auto found = std::lower_bound(
      cuts.begin(), cuts.end(), begin,
      [](const auto& cut, uint64_t at) { return cut.first < at; });
  return found == cuts.end() || found->first != begin ? kWhole : found->second;
}

}  // namespace haulway::python
