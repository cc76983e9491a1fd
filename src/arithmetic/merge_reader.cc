// Design: a range becomes blocks of rows, and these become tiles of columns
// that fit the L2 cache. A tile passes through all steps before the next one is
// begun. PEFT adds to whole matrices instead, one adapter after another, which
// reads and writes memory several times. A step with magnitudes needs the
// length of whole rows, so its tiles are whole rows; if the weight is stored
// transposed, it needs that of whole columns, and the weight is computed twice.
//
// As PEFT does, lengths are those of the weight as it was before all adapters,
// plus the product of this one.

#include "arithmetic/merge_reader.h"

#include <algorithm>
#include <cmath>
#include <ranges>
#include <utility>

#include "arithmetic/scaled_rows.h"
#include "arithmetic/stored_bytes.h"
#include "haulway/dtype.h"
#include "haulway/options.h"
#include "tensor/cast.h"

namespace haulway::arithmetic {

namespace {

// A multiple of the rows that Multiply() computes together.
constexpr uint64_t kMostRows = 48;
constexpr uint64_t kMostColumns = 1024;
constexpr uint64_t kReadAtOnce = 2 * kMiB;
// Floats of a tile that has whole rows.
constexpr uint64_t kWholeRows = 128 * kKiB;

uint64_t FullPanels(uint64_t columns) {
  return CeilDivide(columns, kPanelColumns) * kPanelColumns;
}

std::byte* BytesOf(float* numbers) {
  return reinterpret_cast<std::byte*>(numbers);
}

void Widen(const std::byte* stored, DType dtype, uint64_t first, uint64_t count,
           float* out) {
  CastElements(stored + first * ItemBytes(dtype), dtype, BytesOf(out),
               DType::kF32, count);
}

Result<std::vector<float>> LoadNumbers(const AdapterTensor& tensor) {
  const TensorInfo& info = tensor.info();
  HAULWAY_ASSIGN(const Buffer stored, LoadBytes(*tensor.reader, info));
  std::vector<float> numbers(info.nbytes / ItemBytes(info.dtype));
  Widen(stored.data(), info.dtype, 0, numbers.size(), numbers.data());
  return numbers;
}

Result<Panels> LoadPanels(const MergeStep& step, uint64_t columns) {
  const TensorInfo& info = step.right.info();
  HAULWAY_ASSIGN(const Buffer stored, LoadBytes(*step.right.reader, info));
  Panels made(step.rank, columns);
  const uint64_t rows = step.is_transposed ? columns : step.rank;
  std::vector<float> row(step.is_transposed ? step.rank : columns);
  for (uint64_t i = 0; i < rows; ++i) {
    Widen(stored.data(), info.dtype, i * row.size(), row.size(), row.data());
    for (uint64_t j = 0; j < row.size(); ++j) {
      (step.is_transposed ? made.At(j, i) : made.At(i, j)) = row[j];
    }
  }
  return made;
}

// Widens rows of the left factor.
void WidenLeft(const MergeStep& step, const Buffer& left, uint64_t all_rows,
               uint64_t row, uint64_t rows, std::vector<float>* out) {
  const DType dtype = step.left.info().dtype;
  out->resize(rows * step.rank);
  if (!step.is_transposed) {
    Widen(left.data(), dtype, row * step.rank, out->size(), out->data());
    return;
  }
  std::vector<float> column(rows);
  for (uint64_t k = 0; k < step.rank; ++k) {
    Widen(left.data(), dtype, k * all_rows + row, rows, column.data());
    for (uint64_t i = 0; i < rows; ++i) (*out)[i * step.rank + k] = column[i];
  }
}

bool HasMagnitude(const MergeStep& step) {
  return static_cast<bool>(step.magnitude);
}

// Returns the length of a row, summed in a fixed order.
float Length(const float* numbers, const float* product, uint64_t count) {
  constexpr uint64_t kLanes = 8;
  double sums[kLanes] = {};
  for (uint64_t i = 0; i < count; ++i) {
    const auto sum = static_cast<double>(numbers[i] + product[i]);
    sums[i % kLanes] += sum * sum;
  }
  double all = 0;
  for (const double sum : sums) all += sum;
  return static_cast<float>(std::sqrt(all));
}

}  // namespace

struct MergeReader::Memory {
  std::vector<std::byte> stored;
  std::vector<float> numbers;
  // Those before the first step, if a later one needs them.
  std::vector<float> first_numbers;
  std::vector<float> product;
  std::vector<float> left;
};

Result<MergeReader::AllFactors> MergeReader::LoadFactors(
    const Weight& weight) const {
  AllFactors made(weight.steps.size());
  for (size_t i = 0; i < made.size(); ++i) {
    const MergeStep& step = weight.steps[i];
    if (step.kind == MergeStep::Kind::kVector) {
      HAULWAY_ASSIGN(made[i].value, LoadNumbers(step.value));
    }
    if (step.kind != MergeStep::Kind::kProduct) continue;
    HAULWAY_ASSIGN(made[i].left,
                   LoadBytes(*step.left.reader, step.left.info()));
    HAULWAY_ASSIGN(made[i].right, LoadPanels(step, weight.terms.columns));
    if (HasMagnitude(step)) {
      HAULWAY_ASSIGN(made[i].magnitude, LoadNumbers(step.magnitude));
    }
  }
  return made;
}

Result<MergeReader::Rows> MergeReader::LoadRows(const Weight& weight,
                                                uint64_t first, uint64_t count,
                                                Memory* memory) const {
  const bool is_replaced =
      weight.steps.front().kind == MergeStep::Kind::kReplace;
  const AdapterTensor& other = weight.steps.front().value;
  const FormatReader& reader = is_replaced ? *other.reader : reader_;
  const TensorInfo& info =
      is_replaced ? other.info()
                  : reader_.index().tensors[weight.tensor(Role::kRoot)];
  const uint64_t begin = first * ItemBytes(info.dtype);
  const uint64_t length = count * ItemBytes(info.dtype);
  Rows rows{.dtype = info.dtype, .first = first, .view = std::nullopt};
  rows.view = ViewBytes(reader, info, begin, length);
  if (rows.view.has_value()) {
    rows.bytes = rows.view->data();
    return rows;
  }
  memory->stored.resize(length);
  HAULWAY_TRY(ReadBytes(reader, info, begin, memory->stored));
  rows.bytes = memory->stored.data();
  return rows;
}

void MergeReader::Begin(const Weight& weight, const Rows& rows,
                        const Tile& tile, std::vector<float>* numbers) const {
  numbers->resize(tile.rows * tile.stride);
  for (uint64_t i = 0; i < tile.rows; ++i) {
    const uint64_t at =
        (tile.row + i) * weight.terms.columns + tile.column - rows.first;
    Widen(rows.bytes, rows.dtype, at, tile.columns,
          numbers->data() + i * tile.stride);
  }
  if (rows.dtype != weight.terms.to) {
    RoundThrough(weight.terms.to, numbers->data(), numbers->size());
  }
}

void MergeReader::Product(const Weight& weight, const MergeStep& step,
                          const Factors& factors, const Tile& tile,
                          Memory* memory) const {
  std::vector<float>& product = memory->product;
  product.resize(tile.rows * tile.stride);
  WidenLeft(step, factors.left, weight.rows, tile.row, tile.rows,
            &memory->left);
  Multiply(memory->left.data(), tile.rows, factors.right,
           tile.column / kPanelColumns, tile.stride / kPanelColumns,
           product.data(), tile.stride);
  for (float& number : product) number *= step.scale;
  if (step.rounds_product) {
    RoundThrough(weight.terms.to, product.data(), product.size());
  }
}

Result<std::shared_ptr<const std::vector<float>>> MergeReader::Lengths(
    uint32_t number, const AllFactors& factors, size_t step) const {
  const uint64_t key = uint64_t{number} << 32 | step;
  return lengths_.Get(
      key, [&] { return ComputeLengths(weights_[number], factors, step); });
}

Result<std::vector<float>> MergeReader::ComputeLengths(
    const Weight& weight, const AllFactors& factors, size_t step) const {
  const uint64_t columns = weight.terms.columns;
  const uint64_t at_once =
      std::clamp<uint64_t>(kReadAtOnce / sizeof(float) / columns, 1, kMostRows);
  std::vector<double> sums(columns);
  Memory memory;
  for (uint64_t row = 0; row < weight.rows; row += at_once) {
    const uint64_t count = std::min(at_once, weight.rows - row);
    HAULWAY_ASSIGN(const Rows rows,
                   LoadRows(weight, row * columns, count * columns, &memory));
    for (uint64_t column = 0; column < columns; column += kMostColumns) {
      const uint64_t some = std::min(kMostColumns, columns - column);
      const Tile tile{row, count, column, some, FullPanels(some)};
      Begin(weight, rows, tile, &memory.numbers);
      Product(weight, weight.steps[step], factors[step], tile, &memory);
      for (uint64_t i = 0; i < count; ++i) {
        const float* const numbers = memory.numbers.data() + i * tile.stride;
        const float* const product = memory.product.data() + i * tile.stride;
        for (uint64_t j = 0; j < some; ++j) {
          const auto sum = static_cast<double>(numbers[j] + product[j]);
          sums[column + j] += sum * sum;
        }
      }
    }
  }
  std::vector<float> lengths(columns);
  std::ranges::transform(sums, lengths.begin(), [](double sum) {
    return static_cast<float>(std::sqrt(sum));
  });
  return lengths;
}

Status MergeReader::Compute(uint32_t number, const AllFactors& factors,
                            const Rows& rows, const Tile& tile,
                            Memory* memory) const {
  const Weight& weight = weights_[number];
  const std::vector<MergeStep>& steps = weight.steps;
  std::vector<float>& numbers = memory->numbers;
  Begin(weight, rows, tile, &numbers);
  const auto* first = &numbers;
  if (std::ranges::any_of(steps | std::views::drop(1), HasMagnitude)) {
    memory->first_numbers = numbers;
    first = &memory->first_numbers;
  }
  for (size_t s = 0; s < steps.size(); ++s) {
    const MergeStep& step = steps[s];
    if (step.kind == MergeStep::Kind::kReplace) continue;
    if (step.kind == MergeStep::Kind::kProduct) {
      Product(weight, step, factors[s], tile, memory);
    }
    std::shared_ptr<const std::vector<float>> lengths;
    if (HasMagnitude(step) && step.is_transposed) {
      HAULWAY_ASSIGN(lengths, Lengths(number, factors, s));
    }
    for (uint64_t i = 0; i < tile.rows; ++i) {
      float* const row = numbers.data() + i * tile.stride;
      if (step.kind == MergeStep::Kind::kVector) {
        const float* const value = factors[s].value.data() + tile.column;
        for (uint64_t j = 0; j < tile.columns; ++j) {
          row[j] += value[j] * step.scale;
        }
        continue;
      }
      const float* const product = memory->product.data() + i * tile.stride;
      const float* const magnitude = factors[s].magnitude.data();
      if (lengths != nullptr) {
        for (uint64_t j = 0; j < tile.columns; ++j) {
          const uint64_t column = tile.column + j;
          row[j] =
              magnitude[column] / (*lengths)[column] * (row[j] + product[j]);
        }
      } else if (HasMagnitude(step)) {
        const float length =
            Length(first->data() + i * tile.stride, product, tile.columns);
        const float factor = magnitude[tile.row + i] / length;
        for (uint64_t j = 0; j < tile.columns; ++j) {
          row[j] = factor * (row[j] + product[j]);
        }
      } else {
        for (uint64_t j = 0; j < tile.columns; ++j) row[j] += product[j];
      }
    }
    // The cast of the result rounds after the last step.
    if (s + 1 < steps.size()) {
      RoundThrough(weight.terms.to, numbers.data(), numbers.size());
    }
  }
  return Status();
}

Status MergeReader::Read(uint32_t number, WeightOutput* out) const {
  const Weight& weight = weights_[number];
  const uint64_t columns = weight.terms.columns;
  HAULWAY_ASSIGN(const auto factors,
                 factors_.Get(number, [&] { return LoadFactors(weight); }));
  const bool has_whole_rows =
      std::ranges::any_of(weight.steps, [](const MergeStep& step) {
        return HasMagnitude(step) && !step.is_transposed;
      });
  const uint64_t width = has_whole_rows ? columns : kMostColumns;
  const uint64_t at_once = std::clamp<uint64_t>(
      has_whole_rows ? kWholeRows / columns
                     : kReadAtOnce / ItemBytes(weight.terms.to) / columns,
      1, kMostRows);
  const uint64_t last = CeilDivide(out->end(), columns);
  Memory memory;
  for (uint64_t row = out->first() / columns; row < last;) {
    const uint64_t count = std::min(at_once, last - row);
    uint64_t begin = 0;
    uint64_t end = columns;
    if (count == 1 && !has_whole_rows) {
      const uint64_t start = row * columns;
      if (out->first() > start) {
        begin = (out->first() - start) / kPanelColumns * kPanelColumns;
      }
      end = std::min(columns, out->end() - start);
    }
    HAULWAY_ASSIGN(const Rows rows,
                   LoadRows(weight, row * columns + begin,
                            (count - 1) * columns + end - begin, &memory));
    for (uint64_t column = begin; column < end; column += width) {
      const uint64_t some = std::min(width, end - column);
      const Tile tile{row, count, column, some, FullPanels(some)};
      HAULWAY_TRY(Compute(number, *factors, rows, tile, &memory));
      for (uint64_t i = 0; i < count; ++i) {
        const uint64_t at = (row + i) * columns + column;
        if (at >= out->end() || at + some <= out->first()) continue;
        out->Put(at, some, [&](std::byte* to) {
          CastElements(BytesOf(memory.numbers.data() + i * tile.stride),
                       DType::kF32, to, weight.terms.to, some);
        });
      }
    }
    row += count;
  }
  return Status();
}

}  // namespace haulway::arithmetic
