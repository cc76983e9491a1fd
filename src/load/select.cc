// Design: a text such as "1:3, ..., ::-2" is parsed to items. The items are
// resolved against a shape to one DimSlice per dimension, by NumPy's rules. A
// rank's share of a dimension is one more such slice. So the engine handles
// only starts, stops and steps, and globs, prefixes and ranks mean the same in
// C++, Python and the command line.
//
// A Python implementation would leave the command line and C++ with rules of
// their own. Lists of indices and masks are not supported: they are not runs of
// the source, and NumPy can apply them to the loaded tensor.

#include "haulway/select.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/ascii.h"
#include "base/text.h"
#include "haulway/nearest.h"

namespace haulway {

namespace {

Status Wrong(std::string_view what) {
  return Status(Code::kInvalidArgument, what);
}

std::vector<std::string_view> Split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (true) {
    const size_t at = text.find(separator);
    parts.push_back(text.substr(0, at));
    if (at == text.npos) return parts;
    text.remove_prefix(at + 1);
  }
}

// Returns nullopt for an empty bound.
Result<std::optional<int64_t>> ParseBound(std::string_view text) {
  text = Trim(text, " ");
  if (text.empty()) return std::optional<int64_t>();
  const auto number = ParseNumber<int64_t>(text);
  if (number.has_value()) return number;
  return Wrong(fmt::format("slice {} is not a number", Quote(text)));
}

Result<IndexItem> ParseItem(std::string_view part) {
  using Kind = IndexItem::Kind;
  if (part == "...") return IndexItem{.kind = Kind::kEllipsis};
  const std::vector<std::string_view> fields = Split(part, ':');
  if (fields.size() > 3) {
    return Wrong(
        fmt::format("slice {} has more than start:stop:step", Quote(part)));
  }
  IndexItem item{.kind = fields.size() == 1 ? Kind::kNumber : Kind::kSlice};
  HAULWAY_ASSIGN(item.start, ParseBound(fields[0]));
  if (fields.size() > 1) {
    HAULWAY_ASSIGN(item.stop, ParseBound(fields[1]));
  }
  if (fields.size() > 2) {
    HAULWAY_ASSIGN(item.step, ParseBound(fields[2]));
  }
  if (item.kind == Kind::kNumber && !item.start.has_value()) {
    return Wrong(fmt::format("slice {} is empty", Quote(part)));
  }
  return item;
}

// Resolves a slice of a dimension, with its bounds clamped to the dimension.
Result<DimSlice> Resolve(const IndexItem& item, int64_t size) {
  const int64_t step = item.step.value_or(1);
  if (step == 0) return Wrong("slice step is 0: expected another number");
  // For a negative step both bounds are one lower: -1 is before the first
  // element.
  const int64_t low = step > 0 ? 0 : -1;
  const int64_t high = step > 0 ? size : size - 1;
  const auto clamp = [&](std::optional<int64_t> bound, int64_t otherwise) {
    if (!bound.has_value()) return otherwise;
    const int64_t from_start = *bound < 0 ? *bound + size : *bound;
    return std::clamp(from_start, low, high);
  };
  return DimSlice{clamp(item.start, step > 0 ? low : high),
                  clamp(item.stop, step > 0 ? high : low), step};
}

// Returns one item per dimension, plus the new axes in their places.
Result<std::vector<IndexItem>> Complete(std::span<const IndexItem> index,
                                        size_t rank) {
  using Kind = IndexItem::Kind;
  const auto count = [&](Kind kind) {
    return static_cast<size_t>(
        std::ranges::count(index, kind, &IndexItem::kind));
  };
  if (count(Kind::kEllipsis) > 1) {
    return Wrong("an index can only have a single ellipsis ('...')");
  }
  const size_t named =
      index.size() - count(Kind::kEllipsis) - count(Kind::kNewAxis);
  if (named > rank) {
    return Wrong(
        fmt::format("too many indices: the tensor is {}-dimensional, "
                    "but {} were indexed",
                    rank, named));
  }
  std::vector<IndexItem> items;
  const auto add_whole = [&] { items.resize(items.size() + rank - named); };
  for (const IndexItem& item : index) {
    if (item.kind == Kind::kEllipsis) {
      add_whole();
    } else {
      items.push_back(item);
    }
  }
  if (count(Kind::kEllipsis) == 0) add_whole();
  return items;
}

}  // namespace

std::vector<int64_t> Selection::shape() const {
  std::vector<int64_t> shape;
  for (const SelectedDim& dim : dims) {
    shape.push_back(static_cast<int64_t>(dim.count));
  }
  return shape;
}

std::vector<int64_t> Selection::strides() const {
  std::vector<int64_t> dense(slices.size());
  uint64_t stride = 1;  // Overflows only for tensors that fit in no memory.
  for (size_t d = slices.size(); d-- > 0;) {
    dense[d] = static_cast<int64_t>(stride);
    stride *= std::max<uint64_t>(Count(slices[d]), 1);
  }
  std::vector<int64_t> strides;
  for (const SelectedDim& dim : dims) {
    strides.push_back(dim.repeated          ? 0
                      : dim.dim.has_value() ? dense[*dim.dim]
                                            : 1);
  }
  return strides;
}

bool Selection::IsLargerThan(std::span<const int64_t> strides) const {
  // Doubles hold any product; rounding matters only for huge tensors.
  double read = 1;
  double reach = 1;
  for (size_t d = 0; d < slices.size(); ++d) {
    const auto count = static_cast<double>(Count(slices[d]));
    read *= count;
    reach += std::max(count - 1, 0.0) * static_cast<double>(strides[d]) *
             std::abs(static_cast<double>(slices[d].step));
  }
  return read > reach;
}

Result<std::vector<IndexItem>> ParseIndex(std::string_view text) {
  std::vector<IndexItem> items;
  for (const std::string_view part : Split(text, ',')) {
    HAULWAY_ASSIGN(const IndexItem item, ParseItem(Trim(part, " ")));
    items.push_back(item);
  }
  return items;
}

Result<Selection> Select(std::span<const IndexItem> index,
                         std::span<const int64_t> shape,
                         std::span<const int64_t> strides) {
  using Kind = IndexItem::Kind;
  HAULWAY_ASSIGN(const std::vector<IndexItem> items,
                 Complete(index, shape.size()));
  Selection selection;
  for (const IndexItem& item : items) {
    if (item.kind == Kind::kNewAxis) {
      selection.dims.push_back({});
      continue;
    }
    const size_t dim = selection.slices.size();
    const int64_t size = shape[dim];
    if (item.kind == Kind::kNumber) {
      const int64_t number = item.start.value_or(0);
      const int64_t start = number < 0 ? number + size : number;
      if (start < 0 || start >= size) {
        return Wrong(
            fmt::format("index {} is out of bounds for axis {} with "
                        "size {}",
                        number, dim, size));
      }
      selection.slices.push_back({start, start + 1, 1});
      continue;
    }
    HAULWAY_ASSIGN(DimSlice slice, Resolve(item, size));
    SelectedDim selected{.dim = dim, .count = Count(slice)};
    selected.repeated =
        selected.count > 1 && !strides.empty() && strides[dim] == 0;
    // The step may be larger than a stride computation can hold.
    if (selected.count < 2 || selected.repeated) {
      const int64_t start = selected.count == 0 ? 0 : slice.start;
      slice = {start, start + (selected.count == 0 ? 0 : 1), 1};
    }
    selection.slices.push_back(slice);
    selection.dims.push_back(selected);
  }
  return selection;
}

Status CheckShard(const ShardOptions& shard) {
  if (shard.world >= 1 && shard.rank >= 0 && shard.rank < shard.world) {
    return Status();
  }
  return Wrong(fmt::format("rank is {} of {}: expected 0 to {}", shard.rank,
                           shard.world, shard.world - 1));
}

std::vector<IndexItem> ShardIndex(std::span<const int64_t> shape,
                                  const ShardOptions& shard) {
  const auto rank = static_cast<int64_t>(shape.size());
  if (shard.dim < -rank || shard.dim >= rank) return {};
  const auto dim =
      static_cast<size_t>(shard.dim < 0 ? shard.dim + rank : shard.dim);
  const int64_t each = shape[dim] / shard.world;
  const int64_t more = shape[dim] % shard.world;
  const int64_t start = shard.rank * each + std::min(shard.rank, more);
  const int64_t stop = start + each + (shard.rank < more ? 1 : 0);
  std::vector<IndexItem> index(dim + 1);
  index[dim].start = start;
  index[dim].stop = stop;
  return index;
}

Result<std::vector<SelectedTensor>> SelectTensors(
    const Checkpoint& checkpoint, const SelectOptions& options) {
  if (options.shard.has_value()) HAULWAY_TRY(CheckShard(*options.shard));
  HAULWAY_ASSIGN(const NameFilter names, NameFilter::Make(options.names));
  HAULWAY_TRY(names.CheckUsed({&checkpoint}));
  const bool only_slices = names.all() && !options.slices.empty();
  std::vector<SelectedTensor> chosen;
  size_t met = 0;
  for (const Entry& entry : checkpoint.entries()) {
    const TensorInfo& tensor = checkpoint.index().tensors[entry.tensor];
    SelectedTensor one{.entry = entry, .request = {}, .shape = {}};
    one.request.tensor = entry.tensor;
    one.shape.assign(tensor.shape.begin(), tensor.shape.end());
    std::vector<IndexItem> index;
    const auto slice = options.slices.find(std::string(entry.name));
    if (slice != options.slices.end()) {
      ++met;
      auto parsed = ParseIndex(slice->second);
      if (!parsed.ok()) {
        return std::move(parsed).status().In(
            fmt::format("tensor {}", Quote(entry.name)));
      }
      index = *std::move(parsed);
    } else if (only_slices || !names.Matches(entry.name)) {
      continue;
    } else if (options.shard.has_value()) {
      index = ShardIndex(tensor.shape, *options.shard);
    }
    if (!index.empty()) {
      auto selection = Select(index, tensor.shape);
      if (!selection.ok()) {
        return std::move(selection)
            .status()
            .In(fmt::format("slice {}", Quote(slice->second)))
            .In(fmt::format("tensor {}", Quote(entry.name)));
      }
      one.request.slice = std::move(selection->slices);
      one.shape = selection->shape();
    }
    chosen.push_back(std::move(one));
  }
  if (met == options.slices.size()) return chosen;
  for (const auto& [name, slice] : options.slices) {
    if (checkpoint.Find(name) == nullptr) {
      return Status(
          Code::kNotFound,
          fmt::format("no tensor {}{}", Quote(name),
                      HintOf(name, checkpoint.entries(),
                             [](const Entry& one) { return one.name; })));
    }
  }
  return chosen;
}

}  // namespace haulway
