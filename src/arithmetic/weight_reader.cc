// Design: a range of a weight becomes runs of elements, each in one row, which
// the kernels compute in tiles. A tile that lies wholly in the range is
// computed in its place; one at an edge is computed in other memory and copied.
//
// Alternative not taken: keep whole weights. A weight may be larger than the
// memory that a call may use; its companions are not.

#include "arithmetic/weight_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "arithmetic/shapes.h"
#include "arithmetic/stored_bytes.h"
#include "arithmetic/weight_output.h"
#include "base/no_memory.h"
#include "base/text.h"
#include "tensor/cast.h"

namespace haulway::arithmetic {

namespace {

// Bytes of a root that are read at once, and of a panel.
constexpr uint64_t kReadAtOnce = 2 * kMiB;
constexpr uint64_t kPanelBytes = 4 * kMiB;
// Scales of this size at most are read all at once.
constexpr uint64_t kSmallScales = kMiB;
// Rows that are unpacked together from columns, so that neighbours in a stored
// row are used at once.
constexpr uint64_t kTileRows = 16;
constexpr uint64_t kFewestUnits = 16;

// Rows of the result, and the bytes that hold them in each stored row.
struct PanelUnit {
  uint64_t rows = 1;
  uint64_t bytes = sizeof(uint32_t);
};

PanelUnit UnitOf(const Weight& weight) {
  if (weight.arrangement == Arrangement::kTransposed) return {32, 16};
  if (weight.packing == Packing::kAwq) return {8, sizeof(uint32_t)};
  return {};
}

template <class T>
bool IsAligned(const std::byte* memory) {
  return reinterpret_cast<uintptr_t>(memory) % alignof(T) == 0;
}

// Returns whether the scales of a range are read with it.
bool ReadsScalesByRow(const Weight& weight, const CheckpointIndex& index) {
  return weight.arrangement == Arrangement::kRows &&
         index.tensors[weight.tensor(Role::kScale)].nbytes > kSmallScales;
}

}  // namespace

WeightReader::WeightReader(const FormatReader& reader,
                           std::vector<Weight> weights)
    : reader_(reader),
      weights_(std::move(weights)),
      merges_(reader_, weights_) {}

Status WeightReader::Read(uint32_t number, uint64_t begin,
                          std::span<std::byte> out) const {
  if (out.empty()) return Status();
  const Weight& weight = weights_[number];
  const auto read = [&]() -> Status {
    WeightOutput output(weight, begin, out);
    switch (weight.arrangement) {
      case Arrangement::kBlocks:
        return ReadBlocks(weight, &output);
      case Arrangement::kRows:
        return ReadRows(number, &output);
      case Arrangement::kColumns:
        return ReadColumns(number, &output);
      case Arrangement::kTransposed:
        return ReadTransposed(number, &output);
      case Arrangement::kMerged:
        return merges_.Read(number, &output);
      case Arrangement::kMade:
        return weight.bytes->ReadAt(begin, out);
    }
    return Status(Code::kInternal, "no such arrangement");
  };
  Status status = OrNoMemory(read);
  if (status.ok()) return status;
  return std::move(status).In(Quote(weight.name));
}

Result<std::shared_ptr<const WeightReader::Companions>>
WeightReader::CompanionsOf(uint32_t number) const {
  return companions_.Get(number,
                         [&] { return LoadCompanions(weights_[number]); });
}

Result<WeightReader::Companions> WeightReader::LoadCompanions(
    const Weight& weight) const {
  const auto& tensors = reader_.index().tensors;
  Companions made;
  for (const Role role :
       {Role::kScale, Role::kZero, Role::kGlobalScale, Role::kGroupIndex,
        Role::kMap, Role::kNestedScale, Role::kNestedMap}) {
    if (!weight.has(role)) continue;
    if (role == Role::kScale && ReadsScalesByRow(weight, reader_.index())) {
      continue;
    }
    HAULWAY_ASSIGN(made.parts[static_cast<size_t>(role)],
                   LoadBytes(reader_, tensors[weight.tensor(role)]));
  }
  const auto floats = [&](Role role) {
    const Buffer& bytes = made.parts[static_cast<size_t>(role)];
    std::vector<float> numbers(bytes.size() / sizeof(float));
    if (!numbers.empty()) {
      std::memcpy(numbers.data(), bytes.data(), numbers.size() * sizeof(float));
    }
    return numbers;
  };
  made.map = floats(Role::kMap);
  made.nested_map = floats(Role::kNestedMap);
  if (weight.has(Role::kGlobalScale)) {
    made.global = floats(Role::kGlobalScale).at(0);
  }
  if (!weight.has(Role::kGroupIndex)) return made;
  const Buffer& bytes = made.parts[static_cast<size_t>(Role::kGroupIndex)];
  made.group_of.resize(bytes.size() / sizeof(uint32_t));
  if (!made.group_of.empty()) {
    std::memcpy(made.group_of.data(), bytes.data(),
                made.group_of.size() * sizeof(uint32_t));
  }
  // compressed-tensors: a -1 means that groups are contiguous.
  constexpr uint32_t kUnused = UINT32_MAX;
  const bool is_row = weight.arrangement == Arrangement::kRows;
  if (is_row &&
      std::ranges::find(made.group_of, kUnused) != made.group_of.end()) {
    made.group_of.clear();
  }
  for (const uint32_t group : made.group_of) {
    if (group < weight.terms.groups) continue;
    return Status(Code::kMismatch, fmt::format("its g_idx names group {} of {}",
                                               static_cast<int32_t>(group),
                                               weight.terms.groups));
  }
  return made;
}

Status WeightReader::ReadBlocks(const Weight& weight, WeightOutput* out) const {
  const TensorInfo& root = reader_.index().tensors[weight.tensor(Role::kRoot)];
  const uint64_t columns = weight.terms.columns;
  const uint64_t last = CeilDivide(out->end(), columns);
  // As many blocks as fill a tile.
  const uint64_t in_tile = std::max<uint64_t>(kTile / columns, 1);
  std::vector<float> numbers(in_tile * columns);
  const uint64_t at_once =
      std::max(in_tile, kReadAtOnce / weight.row_bytes / in_tile * in_tile);
  for (uint64_t at = out->first() / columns; at < last;) {
    const uint64_t count = std::min(at_once, last - at);
    HAULWAY_ASSIGN(const Buffer stored,
                   Load(root, at * weight.row_bytes, count * weight.row_bytes));
    for (uint64_t i = 0; i < count; i += in_tile) {
      const uint64_t some = std::min(in_tile, count - i);
      const std::byte* const blocks = stored.data() + i * weight.row_bytes;
      out->Put((at + i) * columns, some * columns, [&](std::byte* memory) {
        if (weight.terms.to == DType::kF32 && IsAligned<float>(memory)) {
          weight.blocks(blocks, some, reinterpret_cast<float*>(memory));
          return;
        }
        weight.blocks(blocks, some, numbers.data());
        CastElements(reinterpret_cast<const std::byte*>(numbers.data()),
                     DType::kF32, memory, weight.terms.to, some * columns);
      });
    }
    at += count;
  }
  return Status();
}

// The scales and zeros of the row that was computed last.
class WeightReader::RowLoop {
 public:
  RowLoop(const Weight& weight, const Companions& companions)
      : weight_(weight),
        companions_(companions),
        scales_(weight.terms.groups),
        zeros_(weight.has(Role::kZero) ? weight.terms.groups : 0) {}

  // Returns the row of the grid of a row, which is over all matrices.
  uint64_t GridRow(uint64_t row) const {
    return row / weight_.rows * weight_.scale_rows +
           row % weight_.rows / weight_.block_rows;
  }

  // Sets where the scales are, from row `first` of the grid on.
  void SetScales(const std::byte* scales, uint64_t first) {
    stored_ = scales;
    first_ = first;
  }

  // `row`: over all matrices. Requires: SetScales() for its grid row.
  RowScales Of(uint64_t row) {
    const uint64_t of_grid = GridRow(row);
    if (of_grid != row_) Widen(of_grid);
    row_ = of_grid;
    return {scales_, zeros_, companions_.group_of};
  }

 private:
  const std::byte* Part(Role role) const {
    return companions_.parts[static_cast<size_t>(role)].data();
  }

  void Widen(uint64_t row) {
    const RowTerms& terms = weight_.terms;
    const uint64_t at = (row - first_) * terms.groups;
    if (weight_.nested_group != 0) {
      WidenNested(row * terms.groups);
    } else {
      WidenScales(terms.scale, stored_ + at * ItemBytes(terms.scale),
                  terms.groups, scales_.data());
    }
    if (weight_.has(Role::kGlobalScale)) {
      for (float& scale : scales_) {
        scale = weight_.multiplies_global ? scale * companions_.global
                                          : scale / companions_.global;
      }
    }
    for (uint64_t g = 0; g < zeros_.size(); ++g) zeros_[g] = Zero(row, g);
  }

  // Each step is rounded: a product, then a sum.
  void WidenNested(uint64_t at) {
    for (uint64_t g = 0; g < scales_.size(); ++g) {
      float nested = 0;
      std::memcpy(&nested,
                  Part(Role::kNestedScale) +
                      (at + g) / weight_.nested_group * sizeof(nested),
                  sizeof(nested));
      const auto code =
          static_cast<uint8_t>(stored_[at - first_ * scales_.size() + g]);
      const float product = companions_.nested_map[code] * nested;
      scales_[g] = product + weight_.nested_offset;
    }
  }

  float Zero(uint64_t row, uint64_t group) const {
    const RowTerms& terms = weight_.terms;
    if (!weight_.has_packed_zeros) {
      return static_cast<float>(
          static_cast<int8_t>(Part(Role::kZero)[row * terms.groups + group]));
    }
    const auto bits = static_cast<uint64_t>(terms.bits);
    const uint32_t stored =
        BitsAt(Part(Role::kZero) + group * sizeof(uint32_t),
               terms.groups * sizeof(uint32_t), row * bits, terms.bits);
    return static_cast<float>(stored) -
           static_cast<float>(1 << (terms.bits - 1));
  }

  const Weight& weight_;
  const Companions& companions_;
  std::vector<float> scales_, zeros_;
  const std::byte* stored_ = nullptr;
  uint64_t first_ = 0;
  uint64_t row_ = UINT64_MAX;
};

Status WeightReader::ReadRows(uint32_t number, WeightOutput* out) const {
  const Weight& weight = weights_[number];
  const RowTerms& terms = weight.terms;
  const TensorInfo& root = reader_.index().tensors[weight.tensor(Role::kRoot)];
  HAULWAY_ASSIGN(const auto companions, CompanionsOf(number));
  RowLoop loop(weight, *companions);
  const TensorInfo& scale =
      reader_.index().tensors[weight.tensor(Role::kScale)];
  const uint64_t grid_bytes = terms.groups * ItemBytes(scale.dtype);
  const bool by_row = ReadsScalesByRow(weight, reader_.index());
  if (!by_row) {
    loop.SetScales(companions->parts[static_cast<size_t>(Role::kScale)].data(),
                   0);
  }
  std::vector<float> numbers(std::min(terms.columns, kTile));
  const uint64_t columns = terms.columns;
  const uint64_t last = CeilDivide(out->end(), columns);
  const uint64_t at_once = std::max<uint64_t>(
      kReadAtOnce / std::max<uint64_t>(weight.row_bytes, 1), 1);
  for (uint64_t first = out->first() / columns; first < last;) {
    const uint64_t count = std::min(at_once, last - first);
    const uint64_t begin = first * weight.row_bytes;
    // The last row may be short.
    HAULWAY_ASSIGN(const Buffer stored, Load(root, begin,
                                             std::min(count * weight.row_bytes,
                                                      root.nbytes - begin)));
    Buffer grid;
    if (by_row) {
      const uint64_t top = loop.GridRow(first);
      const uint64_t grid_rows = loop.GridRow(first + count - 1) + 1 - top;
      HAULWAY_ASSIGN(grid,
                     Load(scale, top * grid_bytes, grid_rows * grid_bytes));
      loop.SetScales(grid.data(), top);
    }
    for (uint64_t row = first; row < first + count; ++row) {
      const RowScales scales = loop.Of(row);
      const std::byte* const codes =
          stored.data() + (row - first) * weight.row_bytes;
      const uint64_t start = row * columns;
      const uint64_t end =
          std::min({columns, weight.elements - start, out->end() - start});
      uint64_t c = out->first() > start ? out->first() - start : 0;
      for (c = c / kTile * kTile; c < end; c += kTile) {
        const uint64_t some =
            std::min({kTile, columns - c, weight.elements - start - c});
        out->Put(start + c, some, [&](std::byte* memory) {
          Unpack(terms, codes, c, some, companions->map.data(), numbers.data());
          ScaleRow(terms, scales, c, some, numbers.data(), memory);
        });
      }
    }
    first += count;
  }
  return Status();
}

Result<std::shared_ptr<const WeightReader::Panel>> WeightReader::PanelOf(
    uint32_t number, uint64_t matrix, uint64_t row, uint64_t* end) const {
  const Weight& weight = weights_[number];
  const PanelUnit unit = UnitOf(weight);
  const TensorInfo& root = reader_.index().tensors[weight.tensor(Role::kRoot)];
  const uint64_t matrix_bytes = root.nbytes / weight.matrices;
  const uint64_t all = CeilDivide(weight.rows, unit.rows);
  const uint64_t stored_rows = matrix_bytes / weight.row_bytes;
  const StorageInfo& storage = reader_.index().storages[root.storage];
  uint64_t units = all;
  if (matrix_bytes > kPanelBytes && IsPlain(storage)) {
    units = std::clamp(kPanelBytes / (stored_rows * unit.bytes), kFewestUnits,
                       std::max(all, kFewestUnits));
  }
  const uint64_t panel = row / unit.rows / units;
  const uint64_t first = panel * units;
  *end = std::min(weight.rows, (first + units) * unit.rows);
  // Fewer than 2^20 panels in a matrix: a panel has 16 units at least.
  const uint64_t key = ((uint64_t{number} << 40) ^ (matrix << 20)) + panel;
  return panels_.Get(key, [&] {
    return LoadPanel(weight, matrix, first, std::min(units, all - first));
  });
}

Result<WeightReader::Panel> WeightReader::LoadPanel(const Weight& weight,
                                                    uint64_t matrix,
                                                    uint64_t first_unit,
                                                    uint64_t units) const {
  const PanelUnit unit = UnitOf(weight);
  const TensorInfo& root = reader_.index().tensors[weight.tensor(Role::kRoot)];
  const uint64_t matrix_bytes = root.nbytes / weight.matrices;
  const uint64_t width = units * unit.bytes;
  Panel panel;
  if (weight.arrangement == Arrangement::kTransposed) {
    const TensorInfo& scale =
        reader_.index().tensors[weight.tensor(Role::kScale)];
    const uint64_t length = scale.nbytes / weight.matrices;
    HAULWAY_ASSIGN(panel.scale_bytes, Load(scale, matrix * length, length));
    panel.scales = {panel.scale_bytes.data(), weight.row_bytes / unit.bytes};
  }
  if (width == weight.row_bytes) {
    HAULWAY_ASSIGN(panel.bytes,
                   Load(root, matrix * matrix_bytes, matrix_bytes));
    panel.rows = {panel.bytes.data(), weight.row_bytes};
    return panel;
  }
  const StorageInfo& storage = reader_.index().storages[root.storage];
  const uint64_t start = storage.offset +
                         root.storage_offset * ItemBytes(root.dtype) +
                         matrix * matrix_bytes;
  panel.first_row = first_unit * unit.rows;
  const uint64_t left = first_unit * unit.bytes;
  const auto view = reader_.source()->View(start, matrix_bytes);
  if (view.has_value()) {
    panel.bytes = *view;
    panel.rows = {panel.bytes.data() + left, weight.row_bytes};
    return panel;
  }
  const uint64_t stored_rows = matrix_bytes / weight.row_bytes;
  HAULWAY_ASSIGN(panel.bytes, memory_.Take(stored_rows * width));
  std::vector<ReadRequest> requests(stored_rows);
  for (uint64_t i = 0; i < stored_rows; ++i) {
    requests[i] = {start + i * weight.row_bytes + left,
                   panel.bytes.mutable_bytes().subspan(i * width, width)};
  }
  HAULWAY_TRY(reader_.source()->ReadMany(requests));
  panel.rows = {panel.bytes.data(), width};
  return panel;
}

Status WeightReader::ReadColumns(uint32_t number, WeightOutput* out) const {
  const Weight& weight = weights_[number];
  const RowTerms& terms = weight.terms;
  HAULWAY_ASSIGN(const auto companions, CompanionsOf(number));
  const auto stored = [&](Role role) {
    const TensorInfo& info = reader_.index().tensors[weight.tensor(role)];
    return StoredRows{companions->parts[static_cast<size_t>(role)].data(),
                      MatricesOf(info.shape).columns * ItemBytes(info.dtype)};
  };
  const StoredRows zero_words = stored(Role::kZero);
  const StoredRows scale_rows = stored(Role::kScale);
  const uint64_t groups = terms.groups;
  const uint64_t columns = terms.columns;
  const uint64_t item = ItemBytes(terms.scale);
  std::vector<float> zeros(kTileRows * groups);
  std::vector<float> scales(kTileRows * groups);
  std::vector<float> numbers(kTileRows * std::min(columns, kTile));
  const uint64_t last = CeilDivide(out->end(), columns);
  for (uint64_t row = out->first() / columns; row < last;) {
    uint64_t end = 0;
    HAULWAY_ASSIGN(const auto panel, PanelOf(number, 0, row, &end));
    const uint64_t rows = std::min({kTileRows, end - row, last - row});
    for (uint64_t i = 0; i < rows; ++i) {
      UnpackZeros(weight.packing, terms.bits, zero_words, groups, row + i,
                  weight.added_to_zeros, zeros.data() + i * groups);
      for (uint64_t g = 0; g < groups; ++g) {
        WidenScales(terms.scale, scale_rows.Row(g) + (row + i) * item, 1,
                    scales.data() + i * groups + g);
      }
    }
    for (uint64_t c = 0; c < columns; c += kTile) {
      const uint64_t some = std::min(kTile, columns - c);
      UnpackColumns(weight.packing, terms.bits, panel->rows,
                    row - panel->first_row, rows, c, some, numbers.data());
      for (uint64_t i = 0; i < rows; ++i) {
        const uint64_t at = (row + i) * columns + c;
        if (at >= out->end() || at + some <= out->first()) continue;
        const RowScales of_row = {std::span(scales).subspan(i * groups, groups),
                                  std::span(zeros).subspan(i * groups, groups),
                                  companions->group_of};
        out->Put(at, some, [&](std::byte* memory) {
          ScaleRow(terms, of_row, c, some, numbers.data() + i * some, memory);
        });
      }
    }
    row += rows;
  }
  return Status();
}

Status WeightReader::ReadTransposed(uint32_t number, WeightOutput* out) const {
  constexpr uint64_t kColumns = 512;
  constexpr uint64_t kBlock = 32;
  const Weight& weight = weights_[number];
  const uint64_t columns = weight.terms.columns;
  std::vector<float> numbers(kBlock * std::min(columns, kColumns));
  const uint64_t last = CeilDivide(out->end(), columns);
  for (uint64_t at = out->first() / columns; at < last;) {
    const uint64_t matrix = at / weight.rows;
    const uint64_t row = at % weight.rows;
    uint64_t end = 0;
    HAULWAY_ASSIGN(const auto panel, PanelOf(number, matrix, row, &end));
    const uint64_t rows =
        std::min({kBlock - row % kBlock, end - row, last - at});
    for (uint64_t c = 0; c < columns; c += kColumns) {
      const uint64_t some = std::min(kColumns, columns - c);
      // The scales of the block, which lie in the same column of their rows.
      const StoredRows of_block = {
          panel->scales.bytes + panel->first_row / kBlock,
          panel->scales.stride};
      DequantizeTransposed(panel->rows, of_block, row - panel->first_row, rows,
                           c, some, numbers.data());
      for (uint64_t i = 0; i < rows; ++i) {
        const uint64_t start = (at + i) * columns + c;
        if (start >= out->end() || start + some <= out->first()) continue;
        out->Put(start, some, [&](std::byte* memory) {
          CastElements(
              reinterpret_cast<const std::byte*>(numbers.data() + i * some),
              DType::kF32, memory, weight.terms.to, some);
        });
      }
    }
    at += rows;
  }
  return Status();
}

}  // namespace haulway::arithmetic
